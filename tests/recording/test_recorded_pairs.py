"""Two recorded loops, one of them with a fault that ``verify`` names; right pairs."""

from functools import partial
from pathlib import Path

import pytest
from recorded_pairs import STEPS, Loop, accumulated, divided

import minitrain
from minitrain.diff.recordings import SAME, RecordingsCompared, compare_recordings
from minitrain.distributed.groups import distributed

by = partial(accumulated, passes=2, sync=False)
# by name: the world size and the loop
LOOPS: dict[str, tuple[int, Loop]] = {
    "whole": (1, partial(by, divide="batch", passes=1)),
    "passes": (1, partial(by, divide="batch")),
    "window of one": (1, partial(by, divide="rank")),
    "means of passes": (1, partial(by, divide="pass")),
    "ranks": (2, partial(by, divide="batch")),
    "ranks, synced": (2, partial(by, divide="batch", sync=True)),
    "window": (2, partial(by, divide="rank", sync=True)),
    "means": (2, partial(by, divide="pass")),
    "means, synced": (2, partial(by, divide="pass", sync=True)),
    "adamw": (2, partial(divided, is_divided=False, loses=False)),
    "zero": (2, partial(divided, is_divided=True, loses=False)),
    "zero, state lost": (2, partial(divided, is_divided=True, loses=True)),
}
PASSES, RANKS = "mean of micro-batch means", "a mean of means: each rank"
# A, B, what of them is unlike first, and the cause
FAULTS = [
    ("window of one", "window", "gradients", f"B: {RANKS}"),
    ("window", "window of one", "gradients", f"A: {RANKS}"),
    ("whole", "means of passes", "gradients", f"B: a {PASSES}"),
    ("means of passes", "passes", "gradients", f"A: a {PASSES}"),
    ("ranks", "means", "gradients", f"B: a {PASSES}"),
    ("means, synced", "ranks, synced", "gradients", f"A: a {PASSES}"),
    ("whole", "means, synced", "gradients", f"B: a {PASSES}"),
]
RIGHT = [
    ("whole", "passes"),
    ("whole", "window of one"),
    ("passes", "ranks"),
    ("whole", "ranks, synced"),
    ("adamw", "zero"),
]


def run_all(folder: Path) -> None:
    with distributed() as (rank, _):
        for name, (world_size, loop) in LOOPS.items():
            if world_size > 1:
                loop(folder / name, rank, world_size)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pairs")
    for name, (world_size, loop) in LOOPS.items():
        if world_size == 1:
            loop(made / name, 0, 1)
    minitrain.launch(run_all, 2, made)
    return made


def compared(folder: Path, a: str, b: str) -> RecordingsCompared:
    return compare_recordings(folder / a, folder / b)


@pytest.mark.parametrize(("a", "b", "what", "cause"), FAULTS)
def test_a_fault_is_named(folder: Path, a: str, b: str, what: str, cause: str) -> None:
    found = compared(folder, a, b)
    assert (found.verdict, found.doubt) == ("different", None)
    assert found.first
    assert (found.first.step, found.first.what) == (0, what), found.first
    assert cause in found.first.cause


@pytest.mark.parametrize(("a", "b"), RIGHT)
def test_right_runs_are_the_same(folder: Path, a: str, b: str) -> None:
    found = compared(folder, a, b)
    assert found.verdict in SAME, found.first


def test_state_that_ranks_divide_is_compared_part_by_part(folder: Path) -> None:
    found = compared(folder, "adamw", "zero")
    assert found.verdict == "equal bits"
    (said,) = found.asides
    assert "divided over the ranks of B" in said
    for pair in (("adamw", "zero, state lost"), ("zero, state lost", "adamw")):
        found = compared(folder, *pair)
        assert (found.verdict, found.first and found.first.step) == (
            "different",
            STEPS - 1,
        )
        assert found.first
        assert (found.first.what, found.first.ranks) == ("optimizer state", "rank 1")
        assert "not restored?" in found.first.cause
