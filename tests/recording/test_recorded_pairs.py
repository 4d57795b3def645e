"""Two recorded loops, one of them with a fault that ``verify`` names; right pairs."""

from functools import partial
from pathlib import Path

import pytest
from recorded_pairs import (
    STEPS,
    Loop,
    accumulated,
    contrastive,
    divided,
    reading,
    some_parts,
)

import minitrain
from minitrain.comm.groups import distributed
from minitrain.compare.recordings import SAME, RecordingsCompared, compare_recordings
from minitrain.recording.format import read_recording

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
    "whole, clipped": (1, partial(by, divide="batch", passes=1, clip=0.1)),
    "ranks, clipped": (2, partial(by, divide="batch", clip=0.1)),
    "window, clipped": (2, partial(by, divide="rank", sync=True, clip=0.1)),
    "means, clipped": (2, partial(by, divide="pass", clip=0.1)),
    "adamw": (2, partial(divided, is_divided=False, loses=False)),
    "zero": (2, partial(divided, is_divided=True, loses=False)),
    "zero, state lost": (2, partial(divided, is_divided=True, loses=True)),
}
for fault in ("", "labels", "eps", "untied", "late", "replaced", "never tied"):
    LOOPS[f"two {fault}"] = 2, partial(reading, fault=fault)
    LOOPS[f"one {fault}"] = 1, partial(reading, fault=fault)
for gathers in ("no", "with", "without"):
    LOOPS[f"pairs, {gathers}"] = 2, partial(contrastive, gathers=gathers)
LOOPS["pairs"] = 1, partial(contrastive, gathers="no")
for lack in (True, False):
    LOOPS[f"lacks {lack}"] = 2, partial(some_parts, lack=lack)
NEGATIVES = "the loss is not a mean over samples: ranks see fewer negatives"
LABELS = "the labels are others, and the inputs the same"
PASSES, RANKS = "mean of micro-batch means", "a mean of means: each rank"
# A, B, what of them is unlike first, and the cause
FAULTS = [
    ("window of one", "window", "gradients", f"B: {RANKS}"),
    ("window", "window of one", "gradients", f"A: {RANKS}"),
    ("whole", "means of passes", "gradients", f"B: a {PASSES}"),
    ("ranks", "means", "gradients", f"B: a {PASSES}"),
    ("whole", "means, synced", "gradients", f"B: a {PASSES}"),
    ("whole, clipped", "window, clipped", "gradients", f"B: {RANKS}"),
    ("means, clipped", "whole, clipped", "gradients", f"A: a {PASSES}"),
    ("pairs", "pairs, no", "gradients", NEGATIVES),
    ("pairs", "pairs, without", "gradients", NEGATIVES),
    ("one ", "one labels", "data", LABELS),
    ("one ", "two labels", "data", LABELS),
    ("two ", "two labels", "data", LABELS),
    ("lacks False", "lacks True", "gradients", "has no gradient in B on rank 1"),
]
RIGHT = [
    ("whole", "passes"),
    ("whole", "window of one"),
    ("passes", "ranks"),
    ("whole", "ranks, synced"),
    ("whole, clipped", "ranks, clipped"),
    ("adamw", "zero"),
    ("pairs", "pairs, with"),
    ("one ", "two "),
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
        assert (found.first.what, found.first.ranks) == ("optimizer state", (1,))
        assert "not restored?" in found.first.cause


@pytest.mark.parametrize(
    ("name", "step", "cause"),
    [
        (
            "two untied",
            0,
            "out.weight was tied to embed.weight, and was replaced after",
        ),
        ("two late", 6, "trainable only after DistributedDataParallel was built"),
        ("two replaced", 0, "mix.weight was replaced after"),
        ("lacks True", 0, "only some ranks use"),
    ],
)
def test_an_alarm_names_what_the_wrapper_does_not_know(
    folder: Path, name: str, step: int, cause: str
) -> None:
    found = read_recording(folder / name).ranks[0].alarms
    first = next(row for row in found if row["kind"] == "alarm")
    assert (first["rule"], first["step"]) == ("gradients", step)
    assert cause in first["line"]
    for right in ("two ", "two never tied", "lacks False"):
        rows = read_recording(folder / right).ranks[0].alarms
        assert not [row for row in rows if row["kind"] == "alarm"], rows


def test_a_broken_tie_names_the_pair(folder: Path) -> None:
    for a, b in (("one ", "two untied"), ("two ", "two never tied")):
        first = compared(folder, a, b).first
        assert first
        assert (first.what, first.tensor) == ("model", "out.weight")
        assert first.cause == "out.weight is tied to embed.weight in A alone"


def test_a_setting_names_the_rank_that_has_it(folder: Path) -> None:
    for a, of in (("two ", ""), ("one ", "B")):
        first = compared(folder, a, "two eps").first
        assert first
        assert (first.what, first.ranks, first.of) == ("optimizer settings", (1,), of)
        assert first.much == "eps = 1e-08 against 1e-06"
