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
    """This rank in a group of ``size`` ranks, with ``dtype`` and ``op`` of a probe."""

    rank: int
    size: int
    dtype: torch.dtype
    op: str

    def sent(self, rank: int) -> list[Any]:
        """Return the elements that ``rank`` sends: three for each rank of the group."""
        # multiples of 12 have whole averages; small numbers have small products
        period = 3 if self.op == "avg" else 5
        places = [(rank + i) % period for i in range(PER_RANK * self.size)]
        if self.dtype == torch.bool:
            return [place < 2 for place in places]
        numbers = [12 * p if self.op == "avg" else 1 + p for p in places]
        if self.dtype.is_complex:
            return [complex(number, -number) for number in numbers]
        return numbers

    def reduced(self) -> list[Any]:
        """Return the expected result of reducing the elements of all ranks."""
        by_element = zip(*map(self.sent, range(self.size)), strict=True)
        answers = [OPS[self.op][1](values) for values in by_element]
        return [*map(bool, answers)] if self.dtype == torch.bool else answers

    def mine(self, values: list[Any]) -> list[Any]:
        """Return this rank's part of ``values``, which have three for each rank."""
        return values[PER_RANK * self.rank : PER_RANK * (self.rank + 1)]


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
# only rank 0 receives
TO_ROOT = ("reduce", "gather", "send_and_recv")


def _call(at: Member, group: Any, collective: str) -> tuple[Tensor, list[Any]]:
    # return what this rank received, and the known answer; rank 0 is the root
    rows = [at.sent(rank) for rank in range(at.size)]
    gathered = [value for row in rows for value in row[:PER_RANK]]
    op, is_root = OPS[at.op][0] if at.op else None, at.rank == 0
    sent = torch.tensor(rows[at.rank], dtype=at.dtype)
    parts = [*sent.split(PER_RANK)]
    # buffers, filled with a value that only bool answers have
    whole = torch.full_like(sent, 99)
    pieces = [*whole.split(PER_RANK)]
    got = pieces[at.rank]
    arguments: dict[str, tuple[Any, ...]] = {
        "all_reduce": (sent, op),
        "reduce": (sent, 0, op),
        "reduce_scatter": (got, parts, op),
        "reduce_scatter_tensor": (got, sent, op),
        "broadcast": (sent, 0),
        "all_gather": (pieces, parts[0]),
        "all_gather_into_tensor": (whole, parts[0]),
        "gather": (parts[0], pieces if is_root else None, 0),
        "scatter": (got, parts if is_root else None, 0),
        "all_to_all_single": (whole, sent),
    }
    if collective in arguments:
        getattr(dist, collective)(*arguments[collective], group=group)
    elif is_root:
        for rank in range(1, at.size):
            dist.recv(pieces[rank], rank, group=group)
    else:
        dist.send(parts[0], 0, group=group)
    if collective in TO_ROOT and not is_root:
        return sent[:0], []
    if at.op:
        answer = at.reduced()
        is_cut = "scatter" in collective
        return (got, at.mine(answer)) if is_cut else (sent, answer)
    received = {
        "broadcast": (sent, rows[0]),
        "all_gather": (torch.cat(pieces), gathered),
        "scatter": (got, at.mine(rows[0])),
        "all_to_all_single": (whole, [value for row in rows for value in at.mine(row)]),
        "send_and_recv": (whole[PER_RANK:], gathered[PER_RANK:]),
    }
    return received.get(collective, (whole, gathered))


def probe_all(group: Any) -> Iterator[Probe]:
    """Try every collective with every operation and type on ``group``, and yield the
    results of this rank. Collective: each rank of ``group`` must iterate to the end.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    calls = [*itertools.product(REDUCING, OPS), *((name, "") for name in MOVING)]
    for (name, op), dtype in itertools.product(calls, DTYPES):
        verdict, detail = _try(name, group, Member(rank, size, dtype, op))
        yield Probe(name, op, str(dtype).partition(".")[2], size, verdict, detail)


def worst(probes: Iterable[Probe]) -> Probe:
    """Return the worst of the ranks' results of one probe; wrong is the worst."""
    gravity = ("right", "unsupported", "wrong")
    return max(probes, key=lambda probe: gravity.index(probe.verdict))


def _try(collective: str, group: Any, at: Member) -> tuple[ProbeVerdict, str]:
    try:
        got, expected = _call(at, group, collective)
    except Exception as error:
        # a rank that hangs or is lost supports nothing, but disproves nothing
        if LOST_PEER.search(str(error)) or WAITED.search(str(error)):
            raise
        why = str(error).strip() or type(error).__name__
        return "unsupported", why.splitlines()[0]
    if got.tolist() == expected:
        return "right", ""
    return "wrong", f"rank {at.rank} got {got.tolist()} instead of {expected}"
