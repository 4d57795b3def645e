"""What could excuse a fault, planted in recordings: ranks that stop, twins that go far
or are none, noise, zeros, missing records.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from one_line import refusal
from recorded import (
    CLASSES,
    Model,
    adamw,
    alter,
    bias,
    record,
    reduced,
    rows_of,
    sgd,
    write,
)
from torch import Tensor, nn
from torch.optim import SGD

from minitrain.cli.recording_words import recordings_in_words
from minitrain.compare.align import header, places_of
from minitrain.compare.recordings import RecordingsCompared, compare_recordings
from minitrain.recording.format import read_recording
from minitrain.recording.sketches import fit

pytestmark = pytest.mark.slow

Row = dict[str, Any]
SAME = "same computation within rounding"


def where_first(found: RecordingsCompared) -> tuple[str, int, str]:
    return found.verdict, found.first.step, found.first.what


def other_bits(entry: Row, sketch: Sequence[float]) -> None:
    entry.update(hash="0" * 32, norm=math.hypot(*sketch), sketch=[*sketch])


def scale(entries: Row, factor: float) -> None:
    for entry in entries.values():
        other_bits(entry, [factor * number for number in entry["sketch"]])


def shift(entry: Row, by: float) -> None:
    first, *others = entry["sketch"]
    other_bits(entry, [first + by, *others])


def moved(folder: Path, name: str, step: int) -> float:
    """How far a tensor went from step 0 to ``step``, by its sketches."""
    rows = {row["step"]: row for row in rows_of(folder) if row["kind"] == "step"}
    return math.dist(*(rows[s]["parameters"][name]["sketch"] for s in (0, step)))


# ranks that stop


def stop(folder: Path, rank: int, steps: int) -> None:
    """After so many steps, with an end."""
    *rows, end = rows_of(folder, rank)
    kept = [row for row in rows if row["kind"] != "step" or row["step"] < steps]
    write(folder, [*kept, end | {"steps": {"0": steps}, "forwards": steps}], rank)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("steps", [3, 22])
def test_a_rank_that_stops_early(tmp_path: Path, rank: int, steps: int) -> None:
    one, a, b = (
        record(tmp_path / name, world_size=size)
        for name, size in (("one", 1), ("a", 2), ("b", 2))
    )
    stop(b, rank, steps)
    found = compare_recordings(a, b)
    assert found.verdict == "different"
    less = [f"step {n} on rank {rank}" for n in (10, 20)]
    after = [f"2 steps after the first 22 on rank {rank}"]
    assert found.only_in_a == (less if steps == 3 else after)
    # beside one process it is a recording that is not whole
    for pair, side in (((one, b), "B"), ((b, one), "A")):
        found = compare_recordings(*pair)
        assert found.verdict == "undecided"
        assert found.broken == [f"{side} has fewer steps on rank {rank}"]


def test_what_stops_in_both_is_compared_where_it_goes_on(tmp_path: Path) -> None:
    a, b = (record(tmp_path / name, world_size=2) for name in "ab")
    stop(a, 0, 3)
    stop(b, 0, 3)
    assert compare_recordings(a, b).verdict == "equal bits"
    alter(b, 1, lambda row: row.update(lr=[0.5]), at=10)
    assert where_first(compare_recordings(a, b)) == ("different", 10, "learning rate")


# twins


def not_finite(row: Row) -> None:
    entry = row["gradients"]["hidden.bias"]
    entry.update(hash="0" * 32, norm=math.nan, sketch=[math.nan] * 8)


halved_once = bias(lambda g, own, rank, step: g * (0.5 if step == 10 else 1.0))


def test_a_twin_that_is_not_finite_excuses_nothing(tmp_path: Path) -> None:
    a, twin = (record(tmp_path / str(x), twin=x) for x in (False, True))
    alter(twin, 0, not_finite, at=10)
    b = record(tmp_path / "b", reduce=halved_once)
    found = compare_recordings(a, b, twin)
    assert where_first(found) == ("different", 10, "gradients")
    c = record(tmp_path / "c")
    alter(c, 0, not_finite, at=10)
    found = compare_recordings(a, c, twin)
    assert where_first(found) == ("different", 10, "gradients")
    assert "not finite in B" in found.first.cause


def test_gradients_that_a_twin_excuses_do_not_free_parameters(tmp_path: Path) -> None:
    a, b = (record(tmp_path / name) for name in "ab")
    twin = record(tmp_path / "twin", twin=True)
    alter(b, 0, lambda row: scale(row["gradients"], 1.01), at=10)
    alter(twin, 0, lambda row: scale(row["gradients"], 1.005), at=10)
    assert compare_recordings(a, b, twin).verdict == SAME
    by = 0.5 * moved(a, "out.weight", 20)
    alter(b, 0, lambda row: shift(row["parameters"]["out.weight"], by), at=20)
    found = compare_recordings(a, b, twin)
    assert where_first(found) == ("different", 20, "parameters")


def test_what_only_a_far_twin_allows_is_undecided(tmp_path: Path) -> None:
    plan = {"optimizer": sgd, "steps": 11}
    a, twin = (record(tmp_path / str(x), twin=x, **plan) for x in (False, True))
    for kind in ("gradients", "parameters"):
        alter(twin, 0, lambda row, kind=kind: scale(row[kind], 1.5), at=10)
    sound = record(tmp_path / "sound", world_size=2, **plan)
    assert compare_recordings(a, sound, twin).verdict == SAME
    flipped_once = reduced(lambda g: g.flip(0), 10)
    b = record(tmp_path / "b", reduce=flipped_once, **plan)
    found = compare_recordings(a, b, twin)
    assert where_first(found) == ("undecided", 10, "gradients")
    assert [step.mark for step in found.steps] == ["=", "=", "=", "?"]
    line = recordings_in_words(found).splitlines()[0]
    assert line.startswith("undecided from step 10 on: gradients, tensor ")
    assert "a fault could hide" in line


def rename(rows: list[Row]) -> None:
    rows[0]["parameters"]["other"] = rows[0]["parameters"].pop("out.bias")


def change(step: int, **values: Any) -> Callable[[list[Row]], None]:
    def at_step(rows: list[Row]) -> None:
        next(row for row in rows if row.get("step") == step).update(values)

    return at_step


def without_samples(rows: list[Row]) -> None:
    for row in rows:
        row.update({"inputs": [[]]} if row["kind"] == "step" else {})


NO_TWINS: dict[str, Callable[[list[Row]], Any]] = {
    "another model": rename,
    "another learning rate at step 10": change(10, lr=[5e-4]),
    "it lacks step 10": lambda rows: rows.pop(4),
    "it ends early": lambda rows: rows.pop(),
    "other samples at step 10": change(10, inputs=[["0" * 16]]),
}


@pytest.mark.parametrize("why", [*NO_TWINS, "no samples were recorded"])
def test_what_is_no_twin_is_refused(tmp_path: Path, why: str) -> None:
    a, twin = (record(tmp_path / str(x), twin=x, steps=12) for x in (False, True))
    assert compare_recordings(a, a, twin).same
    for folder in [twin] if why in NO_TWINS else [a, twin]:
        rows = rows_of(folder)
        NO_TWINS.get(why, without_samples)(rows)
        write(folder, rows)
    assert f"is no twin of {a}: {why}" in refusal(compare_recordings, a, a, twin)


# tensors of few elements


class Wide(Model):
    """Beside this, a bias of four elements hardly counts."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(16, 4096)
        self.out = nn.Linear(4096, CLASSES)


def nudge(row: Row, by: float) -> None:
    shift(row["parameters"]["out.bias"], by)


def other_zeros(row: Row, by: float) -> None:
    """Other bits of the same numbers, as where zeros are negative."""
    for entry in row["parameters"].values():
        entry.update(hash="0" * 32)


def huge(row: Row, by: float) -> None:
    """A gradient that is too large to be squared."""
    other_bits(row["gradients"]["out.bias"], [1e200, *[0.0] * 7])


@pytest.mark.parametrize(
    ("change", "part", "plan", "what"),
    [
        (nudge, 0.02, {"model": Wide}, None),
        (nudge, 0.3, {"model": Wide}, "parameters"),
        (other_zeros, 0, {}, None),
        (huge, 0, {}, "gradients"),
    ],
)
def test_one_tensor(
    tmp_path: Path, change: Any, part: float, plan: Row, what: str | None
) -> None:
    a, b = (record(tmp_path / name, steps=12, **plan) for name in "ab")
    by = part * moved(a, "out.bias", 10)
    alter(b, 0, lambda row: change(row, by), at=None if what is None else 10)
    found = compare_recordings(a, b)
    if what is None:
        assert found.verdict == SAME
        return
    assert where_first(found) == ("different", 10, what)


def test_a_scalar_alone_determines_no_factor() -> None:
    """Its sketch has one number, and seven zeros."""

    def numbers(*values: float) -> Tensor:
        return torch.tensor([*values, *[0.0] * (8 - len(values))])

    assert fit(numbers(1.0), [numbers(2.0)]) is None
    # zeros of the target alone count
    for target in (numbers(1.0, 2.0), numbers(2.0)):
        assert fit(target, [numbers(2.0, 4.0)]) is not None


# gradients that are not there


@pytest.mark.parametrize("factor", [1e-9, 0.0])
def test_no_gradient_is_like_one_of_zeros_alone(tmp_path: Path, factor: float) -> None:
    """And no equal bits of it."""
    # plus zero: without negative zeros
    held, none = bias(lambda g, *_: factor * g + 0.0), bias(lambda *_: None)
    a, b = (
        record(tmp_path / name, reduce=reduce, optimizer=SGD)
        for name, reduce in (("a", held), ("b", none))
    )
    for pair, side in (((a, b), "B"), ((b, a), "A")):
        found = compare_recordings(*pair)
        if not factor:
            assert found.verdict == SAME
            assert {step.mark for step in found.steps} == {"~"}
        else:
            assert where_first(found) == ("different", 0, "gradients")
            assert found.first.cause == f"hidden.bias has no gradient in {side}"


def test_gradient_that_rank_0_does_not_have(tmp_path: Path) -> None:
    """As if each rank had an optimizer for a part of the parameters."""
    same, other = (
        bias(lambda g, own, rank, step, by=by: by * g if rank else None)
        for by in (1, 2)
    )
    a, b, c = (
        record(tmp_path / name, world_size=2, steps=3, optimizer=SGD, reduce=reduce)
        for name, reduce in (("a", same), ("b", same), ("c", other))
    )
    assert compare_recordings(a, b).verdict == "equal bits"
    found = compare_recordings(a, c)
    assert where_first(found) == ("different", 0, "gradients")
    assert (found.first.tensor, found.first.ranks) == ("hidden.bias", (1,))


# types


class Double(Model):
    """In float64."""

    def __init__(self) -> None:
        super().__init__()
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.double())


# rounding in float32, and a fault in float64
nearly = bias(lambda g, *_: (1 + 1e-8) * g)


@pytest.mark.parametrize("optimizer", [adamw, sgd])
def test_float64_has_limits_of_its_own(tmp_path: Path, optimizer: Any) -> None:
    plan = {"model": Double, "optimizer": optimizer}
    a, twin = (record(tmp_path / str(x), twin=x, **plan) for x in (False, True))
    for size in (2, 4):
        sound = record(tmp_path / str(size), world_size=size, **plan)
        assert compare_recordings(a, sound).verdict == SAME
        assert compare_recordings(a, sound, twin).verdict == SAME
    b = record(tmp_path / "b", world_size=2, reduce=nearly, **plan)
    assert where_first(compare_recordings(a, b)) == ("undecided", 0, "gradients")
    assert where_first(compare_recordings(a, b, twin)) == ("different", 0, "gradients")


def test_rounding_is_the_larger_of_both_runs(tmp_path: Path) -> None:
    one, two = (read_recording(record(tmp_path / name, steps=1)) for name in "ab")
    for entry in header(two)["parameters"].values():
        entry["dtype"] = "float64"
    for pair in ((one, two), (two, one)):
        (place, *_) = places_of(*pair, None)
        assert {*place.trajectory.eps.values()} == {torch.finfo(torch.float32).eps}


# missing records


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ({"gradients": {}, "own": {}}, "no gradients were recorded, so none are comp"),
        ({"inputs": [[]]}, "no samples were recorded in A and B, so data is not comp"),
    ],
)
def test_missing_record_is_not_equal(tmp_path: Path, lost: Row, said: str) -> None:
    a, b = (record(tmp_path / name) for name in "ab")
    for folder in (a, b):
        alter(folder, 0, lambda row: row.update(lost))
    found = compare_recordings(a, b)
    assert (found.verdict, found.first) == ("undecided", None)
    lines = recordings_in_words(found)
    assert lines.startswith(f"undecided: {said}")
    assert lines.count(said) == 1
    assert "equal to the bit is what both have" in lines


# alarms


def test_an_alarm_is_said_after_a_note_of_its_rule(tmp_path: Path) -> None:
    a, b = (record(tmp_path / name, steps=3) for name in "ab")
    *rows, end = rows_of(b)
    of_rule = {"rule": "mean", "step": 1, "ranks": [], "tensor": ""}
    told = [of_rule | {"kind": k, "line": k} for k in ("note", "note", "alarm")]
    write(b, [*rows, *told, end])
    assert compare_recordings(a, b).alarms["B"] == ["note", "alarm"]
