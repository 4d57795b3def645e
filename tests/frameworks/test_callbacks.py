"""Callbacks in the real Trainers: they record what `minitrain record` does."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from example_loops import (
    PEERS,
    Run,
    assert_equal_rows,
    loops_by_fork,
    python_of,
    record,
    run_command,
    script_of,
    torchrun,
)
from project import ROOT
from thorough import thorough_after

from minitrain.compare.recordings import compare_recordings
from minitrain.recording.format import read_recording
from minitrain.recording.rows import TWIN

LIGHTNING = ROOT / "tests/support/with_lightning.py"
SIZES = (1, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("callbacks")


@pytest.fixture(scope="module")
def by_fork() -> Iterator[Run]:
    yield from loops_by_fork()


def run(script: Path, folder: Path, size: int, *words: str, **variables: str) -> str:
    """Run ``script`` into ``folder`` as users do; with ``variables`` it must fail."""
    python = [python_of("with_trainer"), *torchrun(size, folder.parent)]
    done = run_command([*python, script, folder, *words], folder.parent, **variables)
    assert (done.returncode != 0) == bool(variables), done.stderr[-4000:]
    return done.stderr


def recorded_by_lightning(folder: Path, size: int, *bug: str) -> Path:
    to = folder / "-".join(["lightning", str(size), *bug])
    if not to.exists():
        run(LIGHTNING, to, size, *bug)
    return to


def with_callback(folder: Path) -> Path:
    """The example of the Trainer with the callback in place of the two lines."""
    text = script_of("with_trainer").read_text()
    text = re.sub(r"^with minitrain.record.*$", "if True:", text, flags=re.M)
    text = re.sub(r"^import minitrain .*$", IMPORTED, text, flags=re.M)
    given = "callbacks=[TransformersCallback(args.folder)]"
    text = text.replace("train_dataset=samples", f"train_dataset=samples, {given}")
    shutil.copy(ROOT / "examples/setting.py", folder)
    (folder / "script.py").write_text(text)
    return folder / "script.py"


IMPORTED = "from minitrain.callbacks import TransformersCallback"


def test_callback_of_transformers_records_what_the_lines_do(
    by_fork: Run, tmp_path: Path
) -> None:
    """The command does, too: test_unchanged.py, in `make thorough` with two ranks."""
    script = with_callback(tmp_path)
    by_fork("with_trainer", 2, tmp_path / "ours", script=script)
    by_fork("with_trainer", 2, tmp_path / "theirs")
    assert_equal_rows(tmp_path / "ours", tmp_path / "theirs", 2)


@pytest.mark.parametrize("size", thorough_after(1, reversed(SIZES)))
def test_callback_of_lightning_records_what_the_command_does(
    size: int, folder: Path, tmp_path: Path
) -> None:
    ours = recorded_by_lightning(folder, size)
    command = [PEERS, *torchrun(size, tmp_path), LIGHTNING, "unused", "--plain"]
    done = record(tmp_path / "theirs", command)
    assert done.returncode == 0, done.stderr[-4000:]
    assert_equal_rows(ours, tmp_path / "theirs", size)
    losses = [step["loss"] for step in read_recording(ours).ranks[0].steps.values()]
    # of random tokens among 64, then of learned ones; undivided by the accumulation
    assert 3.9 < losses[0] < 4.5
    assert 2.5 < losses[-1] < losses[0] - 0.5


def test_one_process_and_two_of_lightning_are_the_same_computation(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (recorded_by_lightning(folder, size) for size in SIZES)
    # on some CPUs AdamW carries rounding beyond the quick limit, so a twin decides
    with monkeypatch.context() as changed:
        changed.setenv(TWIN, "1")
        run(LIGHTNING, folder / "twin", 1)
    found = compare_recordings(one, two, folder / "twin")
    assert found.verdict == "same computation within rounding", found.first
    bug = compare_recordings(one, recorded_by_lightning(folder, 2, "--bug"))
    assert bug.first
    assert (bug.first.step, bug.first.what) == (0, "learning rate")


def test_second_training_is_not_recorded(tmp_path: Path) -> None:
    """An error in an earlier cell of a notebook does not make the first one partial."""
    script = with_callback(tmp_path)
    earlier = "import sys\nsys.last_value = ValueError()\ntrainer = "
    text = script.read_text().replace("trainer = ", earlier, 1)
    twice = r"\1trainer.train(), trainer.train()"
    script.write_text(re.sub(r"^( *)trainer.train\(\)", twice, text, flags=re.M))
    printed = run(script, tmp_path / "run", 1)
    assert printed.count("a callback records one training") == 1
    (rank,) = read_recording(tmp_path / "run").ranks.values()
    assert rank.end is not None


def test_run_that_an_error_ended_is_not_whole(tmp_path: Path) -> None:
    """The original error is raised."""
    script = with_callback(tmp_path)
    fails = "left = iter([1] * 9 + [0])\nmodel.register_forward_pre_hook("
    fails += "lambda *_: print(1 / next(left)))\ntrainer = "
    script.write_text(script.read_text().replace("trainer = ", fails, 1))
    lightning = {"LIGHTNING": "pytorch_lightning", "FAILS_AT": "9"}
    for name, run_script, variables, error in (
        ("lightning", LIGHTNING, lightning, "ValueError: mine"),
        ("transformers", script, {"FAILS": "yes"}, "ZeroDivisionError"),
    ):
        assert error in run(run_script, tmp_path / name, 1, **variables)
        (rank,) = read_recording(tmp_path / name).ranks.values()
        assert (len(rank.steps), rank.end) == (3, None), name
