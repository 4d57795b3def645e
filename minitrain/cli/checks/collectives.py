"""Collectives against answers that are known beforehand: right, wrong, or unsupported.

The answer is worked out in Python's numbers, from whole ones that differ between up to
four ranks and fit all types without rounding, their sums, products and averages too. A
type that a collective refuses is unsupported, which is not wrong.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

ProbeVerdict = Literal["right", "wrong", "unsupported"]
NAMES = (
    "float32 float64 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64 "
    "float8_e4m3fn"
)
DTYPES = tuple(getattr(torch, name) for name in NAMES.split())
# each reduce operation, and what it makes of the elements of all ranks
OPS: dict[str, tuple[Any, Callable[[Sequence[Any]], Any]]] = {
    "sum": (dist.ReduceOp.SUM, sum),
    "avg": (dist.ReduceOp.AVG, lambda values: sum(values) / len(values)),
    "product": (dist.ReduceOp.PRODUCT, math.prod),
    "min": (dist.ReduceOp.MIN, min),
    "max": (dist.ReduceOp.MAX, max),
}
ROOT = 0
PER_RANK = 3


@dataclass(frozen=True)
class Probe:
    """One collective with one operation and type; ``op`` is empty where it has none."""

    collective: str
    op: str
    dtype: str
    world_size: int
    verdict: ProbeVerdict
    detail: str


@dataclass(frozen=True)
class Seat:
    """The place of a rank while it is probed: its group, and what it sends."""

    group: Any
    rank: int
    size: int
    dtype: torch.dtype
    op: str

    def sent(self, count: int, rank: int | None = None) -> list[Any]:
        """Return ``count`` elements that ``rank`` (this one by default) sends."""
        rank = self.rank if rank is None else rank
        # multiples of 12 have whole averages; small numbers have small products
        period = 3 if self.op == "avg" else 5
        places = [(rank + i) % period for i in range(count)]
        if self.dtype == torch.bool:
            return [place < 2 for place in places]
        numbers = [12 * p if self.op == "avg" else 1 + p for p in places]
        if self.dtype.is_complex:
            return [complex(number, -number) for number in numbers]
        return numbers

    def tensor(self, values: Sequence[Any]) -> Tensor:
        """``values`` in the type that is probed."""
        return torch.tensor(values, dtype=self.dtype)

    def reduced(self, count: int) -> list[Any]:
        """Every rank's elements combined, one by one; bools stay bools."""
        by_element = zip(*(self.sent(count, r) for r in range(self.size)), strict=True)
        answers = [OPS[self.op][1](values) for values in by_element]
        return [*map(bool, answers)] if self.dtype == torch.bool else answers

    def gathered(self, count: int) -> list[Any]:
        """Every rank's elements one after the other."""
        return [v for r in range(self.size) for v in self.sent(count, r)]

    def empty(self, count: int) -> Tensor:
        """Return a buffer for an answer, filled with what none is (but for bool)."""
        return torch.full((count,), 99, dtype=self.dtype)

    def mine(self, values: list[Any]) -> list[Any]:
        """This rank's part of ``values``."""
        return values[PER_RANK * self.rank : PER_RANK * (self.rank + 1)]

    @property
    def reduce_op(self) -> Any:
        """The reduce operation, as torch has it."""
        return OPS[self.op][0]

    @property
    def root(self) -> int:
        """The global rank of the group's first."""
        return dist.get_global_rank(self.group, ROOT)

    @property
    def whole(self) -> int:
        """Elements of all ranks together, where each has PER_RANK."""
        return PER_RANK * self.size


# what a rank got, and what it should have got
Outcome = tuple[Tensor, list[Any]]


def _all_reduce(seat: Seat) -> Outcome:
    got = seat.tensor(seat.sent(5))
    dist.all_reduce(got, seat.reduce_op, group=seat.group)
    return got, seat.reduced(5)


def _reduce(seat: Seat) -> Outcome:
    got = seat.tensor(seat.sent(5))
    dist.reduce(got, seat.root, seat.reduce_op, group=seat.group)
    return (got, seat.reduced(5)) if seat.rank == ROOT else (got[:0], [])


def _reduce_scatter_tensor(seat: Seat) -> Outcome:
    got, sent = seat.empty(PER_RANK), seat.tensor(seat.sent(seat.whole))
    dist.reduce_scatter_tensor(got, sent, seat.reduce_op, group=seat.group)
    return got, seat.mine(seat.reduced(seat.whole))


def _reduce_scatter(seat: Seat) -> Outcome:
    got, sent = seat.empty(PER_RANK), seat.tensor(seat.sent(seat.whole))
    dist.reduce_scatter(got, [*sent.split(PER_RANK)], seat.reduce_op, group=seat.group)
    return got, seat.mine(seat.reduced(seat.whole))


def _broadcast(seat: Seat) -> Outcome:
    got = seat.tensor(seat.sent(5))
    dist.broadcast(got, seat.root, group=seat.group)
    return got, seat.sent(5, ROOT)


def _all_gather(seat: Seat) -> Outcome:
    got = [seat.empty(PER_RANK) for _ in range(seat.size)]
    dist.all_gather(got, seat.tensor(seat.sent(PER_RANK)), group=seat.group)
    return torch.cat(got), seat.gathered(PER_RANK)


def _all_gather_into_tensor(seat: Seat) -> Outcome:
    got, sent = seat.empty(seat.whole), seat.tensor(seat.sent(PER_RANK))
    dist.all_gather_into_tensor(got, sent, group=seat.group)
    return got, seat.gathered(PER_RANK)


def _gather(seat: Seat) -> Outcome:
    root, sent = seat.rank == ROOT, seat.tensor(seat.sent(PER_RANK))
    got = [seat.empty(PER_RANK) for _ in range(seat.size)]
    dist.gather(sent, got if root else None, seat.root, group=seat.group)
    return (torch.cat(got), seat.gathered(PER_RANK)) if root else (sent[:0], [])


def _scatter(seat: Seat) -> Outcome:
    got, parts = seat.empty(PER_RANK), seat.tensor(seat.sent(seat.whole))
    sent = [*parts.split(PER_RANK)] if seat.rank == ROOT else None
    dist.scatter(got, sent, seat.root, group=seat.group)
    return got, seat.mine(seat.sent(seat.whole, ROOT))


def _all_to_all_single(seat: Seat) -> Outcome:
    got, sent = seat.empty(seat.whole), seat.tensor(seat.sent(seat.whole))
    dist.all_to_all_single(got, sent, group=seat.group)
    held = [seat.sent(seat.whole, rank) for rank in range(seat.size)]
    return got, [value for values in held for value in seat.mine(values)]


def _send_and_recv(seat: Seat) -> Outcome:
    if seat.rank != ROOT:
        dist.send(seat.tensor(seat.sent(PER_RANK)), seat.root, group=seat.group)
        return seat.empty(0), []
    got = [seat.empty(PER_RANK) for _ in range(1, seat.size)]
    for rank, part in enumerate(got, start=1):
        dist.recv(part, dist.get_global_rank(seat.group, rank), group=seat.group)
    return torch.cat(got), seat.gathered(PER_RANK)[PER_RANK:]


# what ranks combine, with each operation; and what they only move
REDUCING = (_all_reduce, _reduce, _reduce_scatter, _reduce_scatter_tensor)
MOVING = (
    _broadcast,
    _all_gather,
    _all_gather_into_tensor,
    _gather,
    _scatter,
    _all_to_all_single,
    _send_and_recv,
)


def probe_all(group: Any) -> Iterator[Probe]:
    """Try everything on ``group``; call it on all of its ranks."""
    calls = [(call, op) for call in REDUCING for op in OPS]
    calls += [(call, "") for call in MOVING]
    for call, op in calls:
        for dtype in DTYPES:
            rank, size = dist.get_rank(group), dist.get_world_size(group)
            verdict, detail = _try(call, Seat(group, rank, size, dtype, op))
            names = call.__name__.removeprefix("_"), op, str(dtype).partition(".")[2]
            yield Probe(*names, size, verdict, detail)


def worst(probes: Iterable[Probe]) -> Probe:
    """Return the gravest of the verdicts of a group's ranks on one probe."""
    gravity = ("right", "unsupported", "wrong")
    return max(probes, key=lambda probe: gravity.index(probe.verdict))


def _try(call: Callable[[Seat], Outcome], seat: Seat) -> tuple[ProbeVerdict, str]:
    try:
        got, expected = call(seat)
    except Exception as error:
        return "unsupported", str(error).strip().splitlines()[0]
    if got.tolist() == expected:
        return "right", ""
    return "wrong", f"rank {seat.rank} got {got.tolist()} instead of {expected}"
