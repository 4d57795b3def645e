"""What a collective must give, worked out by hand; the doctor tries them all."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from minitrain.cli.checks.collectives import (
    DTYPES,
    OPS,
    Probe,
    Seat,
    all_reduce,
    probe_all,
    worst,
)
from minitrain.comm.groups import distributed

FIRST = Seat(group=None, rank=0, size=2, dtype=torch.int32, op="sum")


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        # rank 0 sends 1 2 3, rank 1 sends 2 3 4
        ("sum", [3, 5, 7]),
        ("product", [2, 6, 12]),
        ("min", [1, 2, 3]),
        ("max", [2, 3, 4]),
        # rank 0 sends 0 12 24, rank 1 sends 12 24 0
        ("avg", [6, 18, 12]),
    ],
)
def test_reduced_element_by_element(op: str, expected: list[int]) -> None:
    assert replace(FIRST, op=op).reduced(3) == expected


def test_gathered_in_the_order_of_the_ranks() -> None:
    assert FIRST.gathered(2) == [1, 2, 2, 3]
    assert replace(FIRST, rank=1).gathered(2) == [1, 2, 2, 3]


def test_what_four_ranks_send_and_get_fits_the_type() -> None:
    for op, dtype in product(OPS, DTYPES):
        seat = Seat(None, 0, 4, dtype, op)
        assert seat.tensor(seat.sent(12)).tolist() == seat.sent(12), seat
        # of complex numbers none is the largest
        if not (dtype.is_complex and op in ("min", "max")):
            assert seat.tensor(seat.reduced(12)).tolist() == seat.reduced(12), seat


def test_gravest_of_the_ranks_counts() -> None:
    right = Probe("all_reduce", "sum", "int8", 2, "right", "")
    unsupported = replace(right, verdict="unsupported", detail="no")
    wrong = replace(right, verdict="wrong", detail="rank 1 got 0")
    assert worst([right, wrong, unsupported]) is wrong
    assert worst([right, unsupported]) is unsupported


def test_a_world_of_one_is_probed_by_every_type() -> None:
    with distributed():
        from torch.distributed import group

        probes = list(probe_all(group.WORLD))
    for call, op in ((all_reduce.__name__, "sum"), (all_reduce.__name__, "avg")):
        tried = [p for p in probes if (p.collective, p.op) == (call, op)]
        assert len(tried) == len(DTYPES)
        assert not [p for p in tried if p.verdict == "wrong"]
    all_reduces = [p for p in probes if p.collective == all_reduce.__name__]
    sums = {p.dtype: p.verdict for p in all_reduces if p.op == "sum"}
    assert {sums[name] for name in ("float32", "float64", "int64")} == {"right"}
