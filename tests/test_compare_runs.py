"""Two runs on disk: equal, or parted at a step, with a cause if the files tell it."""

from dataclasses import replace
from pathlib import Path

import pytest
from one_line import the_line

from minitrain.cli import run
from minitrain.compare_runs import compare_runs
from minitrain.errors import UserError
from minitrain.files import write_jsonl
from minitrain.hashes import save_tensors
from minitrain.trial import Outcome, run_one_process, run_ranks
from minitrain.zoo import bugs
from minitrain.zoo.subjects import make_trial


def write(folder: Path, outcome: Outcome) -> Path:
    """The files of a training run that the comparison reads."""
    folder.mkdir()
    write_jsonl(folder / "hashes.jsonl", outcome.rows)
    save_tensors(folder / "gradients.pt", outcome.results[0].kept["gradients"])
    return folder


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("runs") / "clean", run_ranks(make_trial(), 2))


def test_run_made_twice(clean: Path, tmp_path: Path, capsys) -> None:
    again = write(tmp_path / "again", run_ranks(make_trial(), 2))
    assert compare_runs(clean, again) is None
    assert run(["verify", str(clean), str(again)]) == 0
    assert capsys.readouterr().out.startswith("equal: every recorded step")


@pytest.mark.parametrize(
    ("plant", "step", "what", "cause"),
    [
        (bugs.sum_for_mean, 0, "gradients", "2 times as large: summed"),
        (bugs.another_data_seed, 0, "data", "rank 1 reads other samples"),
        (bugs.missing_set_epoch, 4, "data", "the batch of step 0 again"),
        (bugs.optimizer_state_not_restored, 3, "parameters", "unknown"),
    ],
)
def test_run_with_a_bug(
    clean: Path, tmp_path: Path, plant, step: int, what: str, cause: str
) -> None:
    spoilt = write(tmp_path / "spoilt", run_ranks(make_trial(), 2, plant))
    found = compare_runs(spoilt, clean)
    assert found is not None
    assert (found.step, found.what) == (step, what)
    assert cause in found.cause


def test_two_processes_and_one_differ_by_rounding(
    clean: Path, tmp_path: Path, capsys
) -> None:
    one = write(tmp_path / "one", run_one_process(make_trial()))
    found = compare_runs(clean, one)
    assert found is not None
    assert (found.step, found.what) == (0, "gradients")
    assert found.cause.startswith("rounding only")
    assert run(["verify", str(clean), str(one)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("different at step 0: gradients, tensor embedding.weight")


def test_runs_without_a_common_step(clean: Path, tmp_path: Path) -> None:
    outcome = run_one_process(replace(make_trial(), steps=2))
    folder = write(tmp_path / "other", outcome)
    rows = [row | {"step": row.get("step", 0) + 50} for row in outcome.rows]
    write_jsonl(folder / "hashes.jsonl", rows)
    with pytest.raises(UserError) as raised:
        compare_runs(clean, folder)
    assert the_line(raised) == f"{clean}: has no recorded step in common with {folder}"


@pytest.mark.parametrize("content", [None, "[1]\n", "{}\n", "no JSON\n"])
def test_folder_that_is_no_run(
    clean: Path, tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "hashes.jsonl").write_text(content)
    with pytest.raises(UserError) as raised:
        compare_runs(clean, tmp_path)
    assert the_line(raised).startswith(str(tmp_path))
