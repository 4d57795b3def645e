"""What nothing else shows: the end of a run, buffers, settings of the optimizer."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import Normalized, alter, dealt, record, rows_of, sgd, write
from torch import nn

from minitrain.cli.recording_words import recordings_in_words
from minitrain.compare.recordings import RecordingsCompared, compare_recordings

Row = dict[str, Any]
EQUAL, SAME = "equal bits", "same computation within rounding"


def compared(tmp_path: Path, changes: Row, **plan: Any) -> RecordingsCompared:
    """A run, and one with ``changes`` to it."""
    a = record(tmp_path / "a", **plan)
    return compare_recordings(a, record(tmp_path / "b", **plan | changes))


def change_ends(folder: Path, change: Callable[[Row], Any], rank: int = 0) -> None:
    rows = rows_of(folder, rank)
    change(rows[-1])
    write(folder, rows, rank)


# after the last recorded step, which is 20 of 24


def fast_at_last(step: int) -> float:
    return 1e-3 if step <= 20 else 1.0


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_rate_after_the_last_recorded_step(tmp_path: Path, world_size: int) -> None:
    changes = {"lr": fast_at_last, "world_size": world_size}
    found = compared(tmp_path, changes, optimizer=sgd)
    assert found.verdict == "different"
    first = found.first
    assert (first.step, first.what, first.end) == (23, "parameters", True)
    line = recordings_in_words(found).splitlines()[0]
    assert line.startswith("different at the end, after step 23: parameters, tensor ")
    assert "the recorded step before is 20" in line


def rank_1_goes_on_alone(step: int, models: list[nn.Module], _: Any) -> None:
    if step == 23:
        with torch.no_grad():
            next(models[1].parameters()).mul_(1.5)


def test_a_rank_that_parts_after_the_last_recorded_step(tmp_path: Path) -> None:
    found = compared(tmp_path, {"after": rank_1_goes_on_alone}, world_size=2)
    assert found.verdict == "different"
    assert (found.first.end, found.first.ranks) == (True, (1,))
    (alarm,) = found.alarms["B"]
    assert "parameters, tensor inside.weight, rank 1: differ from the other" in alarm


def test_the_end_where_the_last_step_was_recorded(tmp_path: Path) -> None:
    """It counts if weights are changed after that step."""
    found = compared(tmp_path, {}, steps=21, world_size=2)
    assert found.verdict == EQUAL
    assert (found.asides, found.alarms) == ([], {"A": [], "B": []})
    words = recordings_in_words(found)
    assert words.startswith("equal bits: 5 recorded steps\n")
    assert "steps 0 to 20: =====  (" in words
    other = {"hash": "0", "norm": 9.0, "sketch": [9.0] + [0.0] * 7}
    change_ends(tmp_path / "b", lambda end: end["parameters"]["out.bias"].update(other))
    found = compare_recordings(tmp_path / "a", tmp_path / "b")
    assert found.verdict == "different"
    assert found.first.tensor == "out.bias"


@pytest.mark.parametrize("side", ["a", "b"])
def test_missing_end_is_not_equal(tmp_path: Path, side: str) -> None:
    a, b = (record(tmp_path / name) for name in "ab")
    for what in ("parameters", "buffers"):
        change_ends(tmp_path / side, lambda end, what=what: end.pop(what))
    found = compare_recordings(a, b)
    assert found.verdict == "undecided"
    assert found.unseen == ["what came after step 20 was not recorded"]


# modules given by ``also``, which the loop updates after the optimizer's step


def with_also(folder: Path, at_end: str) -> None:
    for rank in range(len([*folder.glob("rank-*.jsonl")])):
        rows = rows_of(folder, rank)
        for row in rows[1:]:
            row["also"] = {"average": (at_end if row["kind"] == "end" else "0") * 32}
        write(folder, rows, rank)


@pytest.mark.parametrize("steps", [21, 24])
def test_modules_beside_the_model_at_the_end(tmp_path: Path, steps: int) -> None:
    a, b, c, plain = (record(tmp_path / name, steps=steps) for name in "abcd")
    for folder, bits in ((a, "1"), (b, "1"), (c, "2")):
        with_also(folder, bits)
    assert compare_recordings(a, b).verdict == EQUAL
    found = compare_recordings(a, c)
    assert found.verdict == "different"
    assert (found.first.end, found.first.tensor) == (True, "average")
    for pair, side in (((a, plain), "A"), ((plain, a), "B")):
        found = compare_recordings(*pair)
        assert (found.verdict, found.first) == ("undecided", None)
        where = f"average in {side} alone"
        assert found.unseen == [
            f"`also` has other tensors ({where}), so not all are compared"
        ]


def test_modules_beside_the_model_have_no_limits_of_rounding(tmp_path: Path) -> None:
    a, b = (record(tmp_path / name, world_size=n) for name, n in (("a", 1), ("b", 2)))
    for folder, bits in ((a, "1"), (b, "2")):
        with_also(folder, bits)
    found = compare_recordings(a, b)
    assert found.verdict == SAME
    line = "modules given by `also` may differ: only equal bits are compared"
    assert line in found.asides
    assert line not in compare_recordings(a, a).asides


# buffers, where rounding has begun


# the samples of each batch the other way round: other bits, the same data
OTHER_ORDER = {"deal": lambda *at: [batch.flip(0) for batch in dealt(*at)]}


class Average(Normalized):
    """Holds what training never reads."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.ones(32))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))


def changed(name: str, change: Callable[[torch.Tensor], Any]) -> Callable[..., None]:
    def after(step: int, models: list[nn.Module], _: Any) -> None:
        if step >= 5:
            for model in models:
                change(dict(model.named_buffers())[name])

    return after


def test_buffers_apart_by_rounding_are_the_same(tmp_path: Path) -> None:
    found = compared(tmp_path, OTHER_ORDER, model=Average, optimizer=sgd)
    assert "=" not in {step.mark for step in found.steps[1:]}
    assert found.verdict == SAME


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("norm.running_mean", lambda b: b.mul_(1.5)),
        ("norm.running_var", lambda b: b.fill_(math.nan)),
        ("average", lambda b: b.mul_(0.9)),
        ("count", lambda b: b.add_(1)),
    ],
)
def test_buffers_that_training_does_not_read(
    tmp_path: Path, name: str, change: Any
) -> None:
    changes = OTHER_ORDER | {"after": changed(name, change)}
    found = compared(tmp_path, changes, model=Average, optimizer=sgd)
    assert found.verdict == "undecided"
    assert (found.first.what, found.first.tensor) == ("buffers", name)
    assert found.first.step == 10


def test_buffers_with_nan_in_both_runs_are_not_the_same(tmp_path: Path) -> None:
    first, every = (
        changed("norm.running_var", lambda b, at=at: b[at].fill_(math.nan))
        for at in (slice(1), slice(None))
    )
    changes = OTHER_ORDER | {"after": every}
    found = compared(tmp_path, changes, model=Average, optimizer=sgd, after=first)
    assert (found.verdict, found.first.what) == ("undecided", "buffers")


# settings


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ({"weight_decay": 0.01}, {"weight_decay": 0.0}, "different"),
        ({"betas": [0.9, 0.999]}, {"betas": [0.9, 0.9999]}, "different"),
        ({"amsgrad": False}, {"amsgrad": True}, "different"),
        # as a float32 would hold it, and what only one version of torch has
        ({"eps": 1e-8}, {"eps": 1.00000001e-8}, EQUAL),
        ({"eps": 1e-8}, {"decoupled_weight_decay": True}, EQUAL),
    ],
)
def test_settings_of_the_optimizer(
    tmp_path: Path, a: Row, b: Row, verdict: str
) -> None:
    folders = [record(tmp_path / name) for name in "ab"]
    for folder, settings in zip(folders, (a, b), strict=True):
        groups = [{"parameters": ["out.bias"], "settings": settings}]
        alter(folder, 0, lambda row, groups=groups: row.update(groups=groups))
    found = compare_recordings(*folders)
    assert found.verdict == verdict
    if verdict == "different":
        assert (found.first.step, found.first.what) == (0, "optimizer settings")
        assert next(iter(a)) in found.first.much


def other_bits(entries: Row) -> None:
    for entry in entries.values():
        entry["hash"] = "0" * len(entry["hash"])


def near(end: Row) -> None:
    mean = end["buffers"]["norm.running_mean"]
    mean["sketch"] = [x * (1 + 1e-7) for x in mean["sketch"]]
    other_bits(end["parameters"] | {"norm.running_mean": mean})


def other_state(row: Row) -> None:
    other_bits(row["parameters"])
    row["moments"] = dict.fromkeys(row["moments"], "0" * 32)


def test_what_follows_parameters_apart_by_rounding_has_limits_too(
    tmp_path: Path,
) -> None:
    a, b, c = (record(tmp_path / name, model=Normalized) for name in "abc")
    change_ends(b, near)
    alter(c, 0, other_state)
    for other in (b, c):
        found = compare_recordings(a, other)
        assert (found.verdict, found.first) == (SAME, None)
