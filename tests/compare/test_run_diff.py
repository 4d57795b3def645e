"""Comparison of two training runs on disk: verdict, first difference and cause."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import bugs as bugs
import pytest
import torch
from commands import output_of
from one_line import refusal
from run_on_disk import write
from subjects import Bigrams, make_run
from torch import nn

from minitrain.check.trial import run_alone, run_ranks
from minitrain.compare.difference import Cause
from minitrain.compare.run_diff import compare_runs
from minitrain.compare.run_tolerance import FINAL, GRADIENTS, rungs_between
from minitrain.core.files import read_jsonl, write_jsonl
from minitrain.train.run import Inject
from minitrain.train.step_record import load_tensors, save_tensors

pytestmark = pytest.mark.slow
Row = dict[str, Any]
Spoil = Callable[[Path], Any]


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("runs") / "clean", run_ranks(make_run(), 2))


@pytest.fixture
def copy(clean: Path, tmp_path: Path) -> Path:
    """The clean run again, to be spoilt."""
    return Path(shutil.copytree(clean, tmp_path / "copy"))


def test_run_made_twice(clean: Path, tmp_path: Path) -> None:
    again = write(tmp_path / "again", run_ranks(make_run(), 2))
    # six steps on two ranks
    text = "equal: 12 recorded steps of a rank, 6 losses, 2 final states\n"
    assert output_of("verify", clean, again) == (0, text)


def rewritten(change: Callable[[list[Row]], list[Row]]) -> Spoil:
    """Write other rows of hashes.jsonl."""

    def spoil(folder: Path) -> None:
        path = folder / "hashes.jsonl"
        write_jsonl(path, change(read_jsonl(path)))

    return spoil


def without(**where: Any) -> Spoil:
    """Leave out the rows of hashes.jsonl that have these entries."""
    return rewritten(lambda rows: [r for r in rows if not where.items() <= r.items()])


def without_file(name: str) -> Spoil:
    return lambda folder: (folder / name).unlink()


def holding(name: str, text: str) -> Spoil:
    return lambda folder: (folder / name).write_text(text)


STATE_1 = "states/state-rank-1.pt"
without_rank_1 = without(kind="tensors", rank=1)
LACKING = {
    "rank 1": without_rank_1,
    "step 3 of rank 0, step 3 of rank 1": without(kind="tensors", step=3),
    "the batch of step 5": without(kind="batch", step=5),
    ", ".join(f"the loss of step {step}" for step in range(6)): without_file(
        "losses.csv"
    ),
    STATE_1: without_file(STATE_1),
}


@pytest.mark.parametrize("lacking", LACKING)
def test_what_one_run_lacks_is_a_difference(
    clean: Path, copy: Path, lacking: str
) -> None:
    LACKING[lacking](copy)
    code, out = output_of("verify", clean, copy)
    assert code == 1
    lines = out.splitlines()
    assert lines[:2] == [
        "different: what only one of them has",
        f"only in A: {lacking.replace(', the loss of step 5', ' and 1 more')}",
    ]
    assert lines[2].startswith("equal is what both have: ")
    code, out = output_of("verify", copy, clean, "--json")
    facts = json.loads(out)
    assert (code, facts["equal"]) == (1, False)
    assert facts["only_in_a"] == []
    assert facts["only_in_b"] == lacking.split(", ")


def nudge(path: Path) -> None:
    state = load_tensors(path)
    state["norm.bias"][2] = torch.nextafter(state["norm.bias"][2], torch.tensor(9.0))
    save_tensors(path, state)


def test_final_state_of_one_rank(clean: Path, copy: Path) -> None:
    path = copy / STATE_1
    nudge(path)
    code, out = output_of("verify", clean, copy)
    assert code == 1
    assert out.splitlines() == [
        "different: 12 recorded steps of a rank, 6 losses, 2 final states",
        f"state-rank-1.pt: different: 1 of {len(load_tensors(path))} tensors, "
        "1 element in all; first difference: norm.bias[2]",
    ]


@pytest.mark.parametrize(
    ("more", "verdict"), [(3.0, "different"), (1e-3, "different"), (1e-6, "within")]
)
def test_loss_of_one_step(more: float, verdict: str, clean: Path, copy: Path) -> None:
    path = copy / "losses.csv"
    lines = path.read_text().splitlines()
    loss = float(lines[3].partition(",")[2])
    path.write_text("\n".join([*lines[:3], f"2,{loss + more}", *lines[4:]]) + "\n")
    code, out = output_of("verify", clean, copy)
    assert code == (verdict != "within")
    assert out.startswith(verdict)
    assert f"losses: first at step 2: {loss} against {loss + more}" in out


def spoilt_by(inject: Inject, folder: Path) -> Path:
    return write(folder / "spoilt", run_ranks(make_run(), 2, inject))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("runs") / "one", run_ranks(make_run(), 1))


def test_two_processes_and_one_are_within_tolerance(clean: Path, alone: Path) -> None:
    found = compare_runs(clean, alone)
    assert found.verdict == compare_runs(alone, clean).verdict == "within tolerance"
    assert (found.first.step, found.first.what) == (0, "gradients")
    assert found.first.why.cause == Cause.ROUNDING
    assert {rung.verdict for rung in found.rungs.values()} == {"within tolerance"}
    assert found.only_in_a == []
    code, out = output_of("verify", clean, alone)
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("within tolerance: 12 recorded steps of a rank")
    assert lines[-1] == "expected difference: world_size: 2 in A, 1 in B"


CAUSES = {
    bugs.sum_for_mean: Cause.SUMMED,
    bugs.group_of_one: Cause.ALONE,
    bugs.low_precision_reduce: Cause.REDUCED,
}


@pytest.mark.parametrize(
    ("inject", "verdict"),
    [
        (bugs.sum_for_mean, "different"),
        (bugs.scaled_loss, "different"),
        (bugs.group_of_one, "different"),
        (bugs.missing_set_epoch, "different"),
        (bugs.low_precision_reduce, "different"),
        (bugs.mean_of_means, "undecided"),
        (bugs.missing_broadcast, "undecided"),
        # from the step on where an unstable training could be as well
        (bugs.optimizer_state_not_restored, "undecided"),
    ],
)
def test_tolerances_excuse_no_bug(
    inject, verdict: str, alone: Path, tmp_path: Path
) -> None:
    spoilt = spoilt_by(inject, tmp_path)
    for pair, side in (((alone, spoilt), "B"), ((spoilt, alone), "A")):
        found = compare_runs(*pair)
        first = found.first
        assert found.verdict == verdict
        if inject in CAUSES:
            assert (first.step, first.what) == (0, "gradients")
            assert first.why.cause == CAUSES[inject]
            # the values themselves show which of the two it is
            assert first.why.facts.get("side", side) == side
        if inject is bugs.missing_set_epoch:
            # rounding at an earlier step does not hide other data
            assert (first.step, first.what) == (4, "data")


def test_checks_within_tolerances_end_with_the_first_breach() -> None:
    weight = torch.ones(4)
    sampled = {"0/before/w": weight, "0/gradients/w": weight, "0/after/w": weight - 0.1}
    final = ({"w": weight - 0.2}, {"w": weight - 0.2})
    same = rungs_between(sampled, sampled, final, 0)
    assert {rung.verdict for rung in same.values()} <= {"equal", "within tolerance"}
    assert FINAL in same
    scaled = sampled | {"0/gradients/w": 2 * weight}
    found = rungs_between(scaled, sampled, final, 0)
    assert {name: rung.verdict for name, rung in found.items()} == {GRADIENTS: "breach"}


@pytest.mark.parametrize(
    ("change", "world_size", "cause"),
    [
        ({"learning_rate": 3e-3}, 2, Cause.STEPS),
        ({"optimizer": "sgd"}, 2, Cause.OPTIMIZER),
        ({"seed": 7}, 1, Cause.OTHER_START),
    ],
)
def test_another_training_is_not_equal(
    change: dict[str, Any], world_size: int, cause: Cause, clean: Path, tmp_path: Path
) -> None:
    config = replace(make_run(), **change)
    other = write(tmp_path / "other", run_ranks(config, world_size))
    for pair in ((clean, other), (other, clean)):
        found = compare_runs(*pair)
        is_sure = cause != Cause.OPTIMIZER
        assert found.verdict == ("different" if is_sure else "undecided")
        assert found.first.why.cause == cause


@pytest.mark.parametrize(
    ("settings", "verdict"),
    [
        ({"weight_decay": 0.0}, "undecided"),
        ({"betas": (0.9, 0.95)}, "undecided"),
        # the first step may have equal bits, depending on the CPU
        ({"fused": True, "foreach": False}, "within tolerance"),
    ],
)
def test_other_settings_of_the_optimizer(
    settings: dict[str, Any], verdict: str, clean: Path, alone: Path, tmp_path: Path
) -> None:
    other = spoilt_by(lambda w: w.optimizer.param_groups[0].update(settings), tmp_path)
    # also where gradients differ from the first step on
    for one in (clean, alone):
        found = compare_runs(one, other)
        assert found.verdict == compare_runs(other, one).verdict == verdict
        broken = found.rungs["first two steps"].verdict == "breach"
        assert broken == (verdict == "undecided")


def edited(change: Callable[[Row], Any], **where: Any) -> Spoil:
    """Change the first row of hashes.jsonl that has these entries."""

    def edit(rows: list[Row]) -> list[Row]:
        change(next(row for row in rows if where.items() <= row.items()))
        return rows

    return rewritten(edit)


ROW_0 = {"kind": "tensors", "rank": 0, "step": 2}


@pytest.mark.parametrize(
    ("spoil", "only"),
    [(without_file(STATE_1), "states/state-rank-1.pt"), (without_rank_1, "rank 1")],
)
def test_rank_that_the_larger_run_lacks(
    spoil: Spoil, only: str, copy: Path, alone: Path
) -> None:
    spoil(copy)
    assert compare_runs(copy, alone).only_in_b == [only]
    found = compare_runs(alone, copy)
    assert (found.verdict, found.only_in_a) == ("different", [only])


def test_state_of_another_rank_than_0(alone: Path, copy: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(alone, tmp_path / "other"))
    (other / "states/state-rank-0.pt").rename(other / STATE_1)
    (copy / "states/state-rank-0.pt").unlink()
    assert compare_runs(copy, other).verdict == "within tolerance"


def test_rank_that_parts_from_rank_0(clean: Path, copy: Path) -> None:
    row = {"kind": "tensors", "rank": 1, "step": 2}
    edited(lambda row: row["parameters"].update({"norm.bias": "0"}), **row)(copy)
    found = compare_runs(clean, copy)
    assert (found.verdict, found.first.why.cause) == ("different", Cause.ALONE)


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (lambda run: torch.save([1, 2], run / "sampled.pt"), "sampled.pt: damaged"),
        (edited(lambda row: row.pop("buffers"), **ROW_0), "'buffers'"),
        (edited(lambda row: row.pop("sha256"), kind="batch"), "'sha256'"),
        (edited(lambda row: row.update(step="2"), **ROW_0), "hashes.jsonl: damaged"),
        (
            rewritten(lambda rows: rows + [r for r in rows if r["kind"] == "tensors"]),
            "a step is duplicated",
        ),
        (holding("losses.csv", "a,b\n1,2\n"), "losses.csv: damaged"),
        *((holding("hashes.jsonl", text), "hashes") for text in ("[1]", "{}", "none")),
    ],
)
def test_files_that_do_not_fit(
    spoil: Spoil, line: str, copy: Path, alone: Path
) -> None:
    spoil(copy)
    said = refusal(compare_runs, copy, alone)
    assert said.startswith(str(copy))
    assert line in said


def test_random_numbers_of_other_ranks_are_undecided(tmp_path: Path) -> None:
    config = replace(make_run(), factory=lambda: Bigrams(nn.Dropout(0.1)))
    runs = [write(tmp_path / f"{n}", run_ranks(config, n)) for n in (1, 2)]
    found = compare_runs(*runs)
    assert found.verdict == "undecided"
    assert found.first.why.cause == Cause.DRAWN


def test_without_tensors_of_step_0_nothing_is_decided(copy: Path, alone: Path) -> None:
    (copy / "sampled.pt").unlink()
    assert compare_runs(copy, alone).verdict == "undecided"
    # but other tensors are no rounding
    edited(lambda row: row["parameters"].update(fixed="0"), **ROW_0)(copy)
    assert compare_runs(copy, alone).verdict == "different"


def test_state_that_the_last_step_did_not_leave(clean: Path, copy: Path) -> None:
    for rank in range(2):
        nudge(copy / f"states/state-rank-{rank}.pt")
    found = compare_runs(clean, copy)
    assert (found.first, found.verdict) == (None, "different")


def test_runs_without_a_common_step(clean: Path, tmp_path: Path) -> None:
    outcome = run_alone(replace(make_run(), steps=2))
    folder = write(tmp_path / "other", outcome)
    rows = [row | {"step": row.get("step", 0) + 50} for row in outcome.rows]
    write_jsonl(folder / "hashes.jsonl", rows)
    (folder / "sampled.pt").unlink()
    line = refusal(compare_runs, clean, folder)
    assert line == f"{clean}: has no recorded step in common with {folder}"
