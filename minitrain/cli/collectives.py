"""Probes of collectives against known answers: right, wrong, or unsupported.

Answers are computed in Python from whole numbers that differ between up to four ranks.
They, their sums, products and averages fit all types without rounding. A type that a
collective refuses is unsupported, which is not wrong.
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
# each reduce operation of torch, and the same in Python
OPS: dict[str, tuple[Any, Callable[[Sequence[Any]], Any]]] = {
    "sum": (dist.ReduceOp.SUM, sum),
    "avg": (dist.ReduceOp.AVG, lambda values: sum(values) / len(values)),
    "product": (dist.ReduceOp.PRODUCT, math.prod),
    "min": (dist.ReduceOp.MIN, min),
    "max": (dist.ReduceOp.MAX, max),
}
# elements of each rank where ranks send or receive different ones
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
class Member:
    """A rank of a probed group of the ranks 0 to ``size`` - 1, and what it sends."""

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
        """Return ``values`` in the probed type."""
        return torch.tensor(values, dtype=self.dtype)

    def reduced(self, count: int) -> list[Any]:
        """Return the elements of all ranks, combined one by one; bools stay bools."""
        by_element = zip(*(self.sent(count, r) for r in range(self.size)), strict=True)
        answers = [OPS[self.op][1](values) for values in by_element]
        return [*map(bool, answers)] if self.dtype == torch.bool else answers

    def gathered(self) -> list[Any]:
        """Return the elements of all ranks, one rank after the other."""
        return [v for r in range(self.size) for v in self.sent(PER_RANK, r)]

    def empty(self, count: int = PER_RANK) -> Tensor:
        """Return a receive buffer of a value that no answer has, except for bool."""
        return torch.full((count,), 99, dtype=self.dtype)

    def mine(self, values: list[Any]) -> list[Any]:
        """Return this rank's part of ``values``."""
        return values[PER_RANK * self.rank : PER_RANK * (self.rank + 1)]

    @property
    def reduce_op(self) -> Any:
        """The reduce operation of torch."""
        return OPS[self.op][0]

    @property
    def whole(self) -> int:
        """Number of elements of all ranks together."""
        return PER_RANK * self.size


# what a rank received, and the known answer
Outcome = tuple[Tensor, list[Any]]


def _all_reduce(at: Member) -> Outcome:
    got = at.tensor(at.sent(5))
    dist.all_reduce(got, at.reduce_op, group=at.group)
    return got, at.reduced(5)


def _reduce(at: Member) -> Outcome:
    got = at.tensor(at.sent(5))
    dist.reduce(got, 0, at.reduce_op, group=at.group)
    return (got, at.reduced(5)) if at.rank == 0 else (got[:0], [])


def _reduce_scatter_tensor(at: Member) -> Outcome:
    got, sent = at.empty(), at.tensor(at.sent(at.whole))
    dist.reduce_scatter_tensor(got, sent, at.reduce_op, group=at.group)
    return got, at.mine(at.reduced(at.whole))


def _reduce_scatter(at: Member) -> Outcome:
    got, sent = at.empty(), at.tensor(at.sent(at.whole))
    dist.reduce_scatter(got, [*sent.split(PER_RANK)], at.reduce_op, group=at.group)
    return got, at.mine(at.reduced(at.whole))


def _broadcast(at: Member) -> Outcome:
    got = at.tensor(at.sent(5))
    dist.broadcast(got, 0, group=at.group)
    return got, at.sent(5, 0)


def _all_gather(at: Member) -> Outcome:
    got = [at.empty() for _ in range(at.size)]
    dist.all_gather(got, at.tensor(at.sent(PER_RANK)), group=at.group)
    return torch.cat(got), at.gathered()


def _all_gather_into_tensor(at: Member) -> Outcome:
    got, sent = at.empty(at.whole), at.tensor(at.sent(PER_RANK))
    dist.all_gather_into_tensor(got, sent, group=at.group)
    return got, at.gathered()


def _gather(at: Member) -> Outcome:
    root, sent = at.rank == 0, at.tensor(at.sent(PER_RANK))
    got = [at.empty() for _ in range(at.size)]
    dist.gather(sent, got if root else None, 0, group=at.group)
    return (torch.cat(got), at.gathered()) if root else (sent[:0], [])


def _scatter(at: Member) -> Outcome:
    got, parts = at.empty(), at.tensor(at.sent(at.whole))
    sent = [*parts.split(PER_RANK)] if at.rank == 0 else None
    dist.scatter(got, sent, 0, group=at.group)
    return got, at.mine(at.sent(at.whole, 0))


def _all_to_all_single(at: Member) -> Outcome:
    got, sent = at.empty(at.whole), at.tensor(at.sent(at.whole))
    dist.all_to_all_single(got, sent, group=at.group)
    held = [at.sent(at.whole, rank) for rank in range(at.size)]
    return got, [value for values in held for value in at.mine(values)]


def _send_and_recv(at: Member) -> Outcome:
    if at.rank != 0:
        dist.send(at.tensor(at.sent(PER_RANK)), 0, group=at.group)
        return at.empty(0), []
    got = [at.empty() for _ in range(1, at.size)]
    for rank, part in enumerate(got, start=1):
        dist.recv(part, rank, group=at.group)
    return torch.cat(got), at.gathered()[PER_RANK:]


# collectives that combine elements, with each operation; those that only move them
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
    """Try every collective, operation and type on ``group``, in all of its ranks."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    calls = [(call, op) for call in REDUCING for op in OPS]
    calls += [(call, "") for call in MOVING]
    for call, op in calls:
        for dtype in DTYPES:
            verdict, detail = _try(call, Member(group, rank, size, dtype, op))
            names = call.__name__.removeprefix("_"), op, str(dtype).partition(".")[2]
            yield Probe(*names, size, verdict, detail)


def worst(probes: Iterable[Probe]) -> Probe:
    """Return the worst verdict of a group's ranks on one probe."""
    gravity = ("right", "unsupported", "wrong")
    return max(probes, key=lambda probe: gravity.index(probe.verdict))


def _try(call: Callable[[Member], Outcome], at: Member) -> tuple[ProbeVerdict, str]:
    try:
        got, expected = call(at)
    except Exception as error:
        return "unsupported", str(error).strip().splitlines()[0]
    if got.tolist() == expected:
        return "right", ""
    return "wrong", f"rank {at.rank} got {got.tolist()} instead of {expected}"
