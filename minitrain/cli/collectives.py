"""Probes of collectives against known answers: right, wrong, or unsupported.

Answers are computed in Python from whole numbers that differ between up to four ranks.
They, their sums, products and averages fit all types without rounding. A type that a
collective refuses is unsupported, which is not wrong.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.harness.failures import LOST_PEER, WAITED

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
# number of elements that each rank sends to, or receives from, one other rank
PER_RANK = 3


@dataclass(frozen=True)
class Probe:
    """Result of one collective with a reduce operation (``op``; "" if it has none) and
    a type; ``detail`` explains a verdict other than right.
    """

    collective: str
    op: str
    dtype: str
    world_size: int
    verdict: ProbeVerdict
    detail: str


@dataclass(frozen=True)
class Member:
    """This rank in a probed group of the ranks 0 to ``size`` - 1, and what it sends."""

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
        """Return ``values`` as a tensor of the probed type."""
        return torch.tensor(values, dtype=self.dtype)

    def reduced(self, count: int) -> list[Any]:
        """Return the expected result of reducing ``count`` elements over all ranks."""
        by_element = zip(*(self.sent(count, r) for r in range(self.size)), strict=True)
        answers = [OPS[self.op][1](values) for values in by_element]
        return [*map(bool, answers)] if self.dtype == torch.bool else answers

    def gathered(self) -> list[Any]:
        """Return the expected result of gathering from all ranks, in rank order."""
        return [v for r in range(self.size) for v in self.sent(PER_RANK, r)]

    def empty(self, count: int) -> Tensor:
        """Return a receive buffer, filled with a value that only bool answers have."""
        return torch.full((count,), 99, dtype=self.dtype)

    def mine(self, values: list[Any]) -> list[Any]:
        """Return this rank's share of ``values``, which hold one for each rank."""
        return values[PER_RANK * self.rank : PER_RANK * (self.rank + 1)]

    @property
    def reduce_op(self) -> Any:
        """The ReduceOp of torch; None for a collective without one."""
        return OPS[self.op][0] if self.op else None

    @property
    def whole(self) -> int:
        """Number of elements of all ranks together."""
        return PER_RANK * self.size


# collectives that are tried with each reduce operation, and the others
REDUCING = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor")
MOVING = (
    "broadcast",
    "all_gather",
    "all_gather_into_tensor",
    "gather",
    "scatter",
    "all_to_all_single",
    "send_and_recv",
)


def _call(at: Member, collective: str) -> tuple[Tensor, list[Any]]:
    # return what this rank received, and the known answer; rank 0 is the root
    size, whole, group, op = at.size, at.whole, at.group, at.reduce_op
    five, part = at.tensor(at.sent(5)), at.tensor(at.sent(PER_RANK))
    parts, is_root = at.tensor(at.sent(whole)), at.rank == 0
    got, pieces = at.empty(PER_RANK), [at.empty(PER_RANK) for _ in range(size)]
    match collective:
        case "all_reduce":
            dist.all_reduce(five, op, group=group)
            return five, at.reduced(5)
        case "reduce":
            dist.reduce(five, 0, op, group=group)
            return (five, at.reduced(5)) if is_root else (five[:0], [])
        case "reduce_scatter":
            dist.reduce_scatter(got, [*parts.split(PER_RANK)], op, group=group)
            return got, at.mine(at.reduced(whole))
        case "reduce_scatter_tensor":
            dist.reduce_scatter_tensor(got, parts, op, group=group)
            return got, at.mine(at.reduced(whole))
        case "broadcast":
            dist.broadcast(five, 0, group=group)
            return five, at.sent(5, 0)
        case "all_gather":
            dist.all_gather(pieces, part, group=group)
            return torch.cat(pieces), at.gathered()
        case "all_gather_into_tensor":
            got = at.empty(whole)
            dist.all_gather_into_tensor(got, part, group=group)
            return got, at.gathered()
        case "gather":
            dist.gather(part, pieces if is_root else None, 0, group=group)
            return (torch.cat(pieces), at.gathered()) if is_root else (part[:0], [])
        case "scatter":
            sent = [*parts.split(PER_RANK)] if is_root else None
            dist.scatter(got, sent, 0, group=group)
            return got, at.mine(at.sent(whole, 0))
        case "all_to_all_single":
            got = at.empty(whole)
            dist.all_to_all_single(got, parts, group=group)
            return got, [v for r in range(size) for v in at.mine(at.sent(whole, r))]
    # the remaining case is send_and_recv
    if not is_root:
        dist.send(part, 0, group=group)
        return part[:0], []
    for rank in range(1, size):
        dist.recv(pieces[rank], rank, group=group)
    return torch.cat(pieces[1:]), at.gathered()[PER_RANK:]


def probe_all(group: Any) -> Iterator[Probe]:
    """Try every collective with every operation and type on ``group``, and yield the
    results of this rank. Collective: each rank of ``group`` must iterate to the end.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    calls = [*itertools.product(REDUCING, OPS), *((name, "") for name in MOVING)]
    for (name, op), dtype in itertools.product(calls, DTYPES):
        verdict, detail = _try(name, Member(group, rank, size, dtype, op))
        yield Probe(name, op, str(dtype).partition(".")[2], size, verdict, detail)


def worst(probes: Iterable[Probe]) -> Probe:
    """Return the worst of the ranks' results of one probe; wrong is the worst."""
    gravity = ("right", "unsupported", "wrong")
    return max(probes, key=lambda probe: gravity.index(probe.verdict))


def _try(collective: str, at: Member) -> tuple[ProbeVerdict, str]:
    try:
        got, expected = _call(at, collective)
    except Exception as error:
        # a rank that hangs or is lost supports nothing, but disproves nothing
        if LOST_PEER.search(str(error)) or WAITED.search(str(error)):
            raise
        why = str(error).strip() or type(error).__name__
        return "unsupported", why.splitlines()[0]
    if got.tolist() == expected:
        return "right", ""
    return "wrong", f"rank {at.rank} got {got.tolist()} instead of {expected}"
