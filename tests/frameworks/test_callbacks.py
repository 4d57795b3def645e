"""Callbacks in the real Trainers: they record what `minitrain record` does."""

import re
import shutil
from pathlib import Path

import pytest
from example_loops import (
    PEERS,
    Run,
    assert_equal_rows,
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
from minitrain.recording.twin import TWIN

SIZES = (1, 2)
IMPORTED = "from minitrain.callbacks import TransformersCallback"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the loop of Lightning, and in time its recordings."""
    made = tmp_path_factory.mktemp("callbacks")
    shutil.copy(ROOT / "examples/setting.py", made)
    shutil.copy(ROOT / "tests/support/with_lightning.py", made)
    return made


def by_lightning(by_fork: Run, folder: Path, size: int, *bug: str) -> Path:
    """The recording of the loop by so many ranks, made once."""
    to = folder / f"lightning-{size}{''.join(bug)}"
    if not to.exists():
        script = folder / "with_lightning.py"
        by_fork("with_lightning", size, to, *bug, script=script)
    return to


def with_callback(folder: Path, *changes: tuple[str, str]) -> Path:
    """The example of the Trainer with the callback in place of the two lines, and with
    ``changes``: text, and what takes its place once.
    """
    text = script_of("with_trainer").read_text()
    text = re.sub(r"^with minitrain.record.*$", "if True:", text, flags=re.M)
    text = re.sub(r"^import minitrain .*$", IMPORTED, text, flags=re.M)
    given = "callbacks=[TransformersCallback(args.folder)]"
    text = text.replace("train_dataset=samples", f"train_dataset=samples, {given}")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    shutil.copy(ROOT / "examples/setting.py", folder)
    (folder / "script.py").write_text(text)
    return folder / "script.py"


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
    size: int, by_fork: Run, folder: Path, tmp_path: Path
) -> None:
    ours = by_lightning(by_fork, folder, size)
    script = folder / "with_lightning.py"
    command = [PEERS, *torchrun(size, tmp_path), script, "unused", "--plain"]
    done = record(tmp_path / "theirs", command)
    assert done.returncode == 0, done.stderr[-4000:]
    assert_equal_rows(ours, tmp_path / "theirs", size)
    losses = [step["loss"] for step in read_recording(ours).ranks[0].steps.values()]
    # of random tokens among 64, then of learned ones; undivided by the accumulation
    assert 3.9 < losses[0] < 4.5
    assert 2.5 < losses[-1] < losses[0] - 0.5


def test_one_process_and_two_of_lightning_are_the_same_computation(
    by_fork: Run, folder: Path
) -> None:
    one, two = (by_lightning(by_fork, folder, size) for size in SIZES)
    # on some CPUs AdamW carries rounding beyond the quick limit, so a twin decides
    twin, script = folder / "twin", folder / "with_lightning.py"
    by_fork("with_lightning", 1, twin, script=script, **{TWIN: "1"})
    found = compare_recordings(one, two, twin)
    assert found.verdict == "same computation within rounding", found.first
    bug = compare_recordings(one, by_lightning(by_fork, folder, 2, "--bug"))
    assert bug.first
    assert (bug.first.step, bug.first.what) == (0, "learning rate")


def test_run_that_an_error_ended_is_not_whole(folder: Path, tmp_path: Path) -> None:
    fails = "left = iter([1] * 9 + [0])\nmodel.register_forward_pre_hook("
    fails += "lambda *_: print(1 / next(left)))\ntrainer = "
    script = with_callback(tmp_path, ("trainer = ", fails))
    lightning = {"LIGHTNING": "pytorch_lightning", "FAILS_AT": "9"}
    for name, run_script, variables, error in (
        ("lightning", folder / "with_lightning.py", lightning, "ValueError: mine"),
        ("transformers", script, {}, "ZeroDivisionError"),
    ):
        command = [python_of("with_trainer"), run_script, tmp_path / name]
        done = run_command(command, tmp_path, **variables)
        assert done.returncode != 0
        assert error in done.stderr
        (rank,) = read_recording(tmp_path / name).ranks.values()
        assert (len(rank.steps), rank.end) == (3, None), name
