"""What a collective must give, worked out by hand; the doctor tries them all."""

from dataclasses import replace

import pytest
import torch

from minitrain.cli.checks.collectives import Probe, Seat, worst

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
def test_answers_by_hand(op: str, expected: list[int]) -> None:
    assert replace(FIRST, op=op).reduced(3) == expected
    for rank in (0, 1):
        seat = replace(FIRST, rank=rank)
        assert seat.gathered(2) == [1, 2, 2, 3]
        assert seat.mine([*range(6)]) == [3 * rank, 3 * rank + 1, 3 * rank + 2]


def test_gravest_of_the_ranks_counts() -> None:
    right = Probe("all_reduce", "sum", "int8", 2, "right", "")
    unsupported = replace(right, verdict="unsupported", detail="no")
    wrong = replace(right, verdict="wrong", detail="rank 1 got 0")
    assert worst([right, wrong, unsupported]) is wrong
    assert worst([right, unsupported]) is unsupported
