"""Callbacks in the real Trainers: they record what `minitrain record` does."""

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from example_loops import (
    PEERS,
    python_of,
    record,
    rows,
    script_of,
    torchrun,
    variables_of,
)
from project import ROOT
from thorough import thorough_after
from waiting import GENEROUS_S

from minitrain.compare.recordings import compare_recordings
from minitrain.recording.format import read_recording

LIGHTNING = ROOT / "tests/support/with_lightning.py"
SIZES = (1, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("callbacks")


def run(script: Path, folder: Path, size: int, *words: str, **variables: str) -> str:
    """Run ``script`` into ``folder`` as users do; with ``variables`` it is to fail."""
    path = f"{ROOT / 'examples'}:{ROOT}"
    python = [python_of("with_trainer"), *torchrun(size, folder.parent)]
    done = subprocess.run(
        [*python, script, folder, *words],
        env=variables_of(str(folder.parent), PYTHONPATH=path, **variables),
        cwd=folder.parent,
        capture_output=True,
        text=True,
        timeout=GENEROUS_S,
    )
    assert (done.returncode != 0) == bool(variables), done.stderr[-4000:]
    return done.stderr


def recorded_by_lightning(folder: Path, size: int, *bug: str) -> Path:
    to = folder / "-".join(["lightning", str(size), *bug])
    if not to.exists():
        run(LIGHTNING, to, size, *bug)
    return to


def assert_equal_rows(a: Path, b: Path, size: int) -> None:
    ours, theirs = read_recording(a), read_recording(b)
    assert ours.world_size == theirs.world_size == size
    for rank, of in ours.ranks.items():
        assert rows(theirs.ranks[rank]) == rows(of)


def with_callback(folder: Path) -> Path:
    """The example of the Trainer with the callback in place of the two lines."""
    text = script_of("with_trainer").read_text()
    text = re.sub(r"^with minitrain.record.*$", "if True:", text, flags=re.M)
    text = re.sub(r"^import minitrain .*$", IMPORTED, text, flags=re.M)
    given = "callbacks=[TransformersCallback(args.folder)]"
    text = text.replace("train_dataset=samples", f"train_dataset=samples, {given}")
    (folder / "script.py").write_text(text)
    return folder / "script.py"


IMPORTED = "from minitrain.callbacks import TransformersCallback"


@pytest.mark.parametrize("size", thorough_after(1, reversed(SIZES)))
def test_callback_of_transformers_records_what_the_command_does(
    size: int, tmp_path: Path
) -> None:
    run(with_callback(tmp_path), tmp_path / "ours", size)
    text = (tmp_path / "script.py").read_text().replace(", callbacks=", ") #")
    (tmp_path / "script.py").write_text(text)
    command = [PEERS, *torchrun(size, tmp_path), tmp_path / "script.py", "unused"]
    done = record(tmp_path / "theirs", command, tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    assert_equal_rows(tmp_path / "ours", tmp_path / "theirs", size)


@pytest.mark.parametrize("size", SIZES)
def test_callback_of_lightning_records_what_the_command_does(
    size: int, folder: Path, tmp_path: Path
) -> None:
    ours = recorded_by_lightning(folder, size)
    command = [PEERS, *torchrun(size, tmp_path), LIGHTNING, "unused", "--plain"]
    done = record(tmp_path / "theirs", command, tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    assert_equal_rows(ours, tmp_path / "theirs", size)
    losses = [step["loss"] for step in steps_of(ours)]
    # of random tokens among 64, then of learned ones; undivided by the accumulation
    assert 3.9 < losses[0] < 4.5
    assert 2.5 < losses[-1] < losses[0] - 0.5


def steps_of(folder: Path) -> Iterable[dict[str, float]]:
    return read_recording(folder).ranks[0].steps.values()


def test_one_process_and_two_of_lightning_are_the_same_computation(
    folder: Path,
) -> None:
    one, two = (recorded_by_lightning(folder, size) for size in SIZES)
    found = compare_recordings(one, two)
    assert found.verdict == "same computation within rounding", found.first
    bug = compare_recordings(one, recorded_by_lightning(folder, 2, "--bug"))
    assert bug.first
    assert (bug.first.step, bug.first.what) == (0, "learning rate")


def test_second_training_is_not_recorded(tmp_path: Path) -> None:
    """Nor does an error in an earlier cell of a notebook make the first one partial."""
    script = with_callback(tmp_path)
    earlier = "import sys\nsys.last_value = ValueError()\ntrainer = "
    text = script.read_text().replace("trainer = ", earlier, 1)
    text = re.sub(
        r"^( *)trainer.train\(\)",
        r"\1trainer.train(), trainer.train()",
        text,
        flags=re.M,
    )
    script.write_text(text)
    printed = run(script, tmp_path / "run", 1)
    assert printed.count("a callback records one training") == 1
    (rank,) = read_recording(tmp_path / "run").ranks.values()
    assert rank.end is not None


def test_run_that_an_error_ended_is_not_whole(folder: Path, tmp_path: Path) -> None:
    """And the error is the run's own."""
    lightning = {"LIGHTNING": "pytorch_lightning", "FAILS_AT": "9"}
    printed = run(LIGHTNING, tmp_path / "lightning", 1, **lightning)
    assert "ValueError: mine" in printed
    script = with_callback(tmp_path)
    fails = "left = iter([1] * 9 + [0])\nmodel.register_forward_pre_hook("
    fails += "lambda *_: print(1 / next(left)))\ntrainer = "
    text = script.read_text().replace("trainer = ", fails, 1)
    script.write_text(text)
    printed = run(script, tmp_path / "transformers", 1, FAILS="yes")
    assert "ZeroDivisionError" in printed
    for name in ("lightning", "transformers"):
        (rank,) = read_recording(tmp_path / name).ranks.values()
        assert len(rank.steps) == 3, name
        assert rank.end is None, name
