"""Raw DDP, Accelerate, Fabric and the Trainer of transformers, recorded.

One process and two are the same computation, the bug of each loop is named, and the
recorder raises no false alarm.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from example_loops import LOOPS, Run, python_of
from pages import blocks
from project import ROOT, run_in

from minitrain.compare.recordings import RecordingsCompared, compare_recordings
from minitrain.recording.format import read_recording

Recorded = Callable[..., Path]


@pytest.fixture(scope="module")
def recorded(by_fork: Run, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """The recording of a loop, made once: ``recorded(loop, world_size, "--bug")``."""

    @cache
    def record(name: str, world_size: int, *arguments: str, twin: bool = False) -> Path:
        folder = tmp_path_factory.mktemp("loops") / "recording"
        variables = {"MINITRAIN_TWIN": "1"} if twin else {}
        by_fork(name, world_size, folder, *arguments, **variables)
        return folder

    return record


def alarms_in(folder: Path) -> list[str]:
    ranks = read_recording(folder).ranks.values()
    found = [row for rank in ranks for row in rank.alarms if row["kind"] == "alarm"]
    return [*dict.fromkeys(str(row["line"]) for row in found)]


def against_one_process(name: str, recorded: Recorded, *bug: str) -> RecordingsCompared:
    twin = recorded(name, 1, twin=True)
    return compare_recordings(recorded(name, 1), recorded(name, 2, *bug), twin)


@pytest.mark.parametrize("name", LOOPS)
def test_one_process_and_two_are_the_same_computation(
    name: str, recorded: Recorded
) -> None:
    assert alarms_in(recorded(name, 1)) == []
    assert alarms_in(recorded(name, 2)) == []
    row = read_recording(recorded(name, 2)).ranks[0].steps[0, 0]
    assert row["wrapper"] == "DistributedDataParallel"
    found = against_one_process(name, recorded)
    assert found.verdict == "same computation within rounding", found.first


@pytest.mark.timeout(600)
def test_masked_model_of_transformers_is_proven(tmp_path: Path) -> None:
    """The one of docs/how-to/check.md: with attention and dropout."""
    page = (ROOT / "docs/how-to/check.md").read_text()
    (script,) = (b.text for b in blocks(page) if b.text.startswith("# my_masked.py"))
    (tmp_path / "my_masked.py").write_text(script)
    check = ["-m", "minitrain", "check", "my_masked.py:build"]
    check += ["--batches=my_masked.py:batches", "--count=my_masked.py:count"]
    python, path = python_of("with_trainer"), str(ROOT)
    done = run_in(tmp_path, python, *check, timeout_s=500, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "proven: bit-identical to its replay" in done.stdout


@pytest.mark.parametrize(
    ("loop", "world_size", "more"),
    [("nanogpt_style", 2, ["--bf16"]), ("with_fabric", 3, ["--seed", "1"])],
)
def test_clean_run_gives_no_alarm(
    by_fork: Run, loop: str, world_size: int, more: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "recording"
    printed = by_fork(loop, world_size, folder, "--dropout", "0.1", *more)
    recording = read_recording(folder)
    assert len(recording.ranks) == world_size
    assert all(rank.end for rank in recording.ranks.values())
    # the first three steps, and two at least that come later
    assert all(len(rank.steps) >= 5 for rank in recording.ranks.values())
    assert alarms_in(folder) == []
    ours = [s for s in printed.splitlines() if s.startswith("minitrain: ")]
    told = ("minitrain: note", "minitrain: recorded ")
    assert [line for line in ours if not line.startswith(told)] == []


# first difference and cause by verify, and the alarm of the recorder
TOLD = {
    "nanogpt_style": (
        "gradients",
        "rank 0 keeps its own gradient: not synchronized",
        "DistributedDataParallel did not synchronize in the last pass: no_sync was on",
    ),
    # both ranks read the whole batch, so their mean is what one process has
    "with_accelerate": (
        "data",
        "the same samples",
        "data that is not divided among the ranks",
    ),
    "with_fabric": (
        "learning rate",
        "B's learning rate is multiplied by the number of processes",
        "",
    ),
    "with_trainer": ("gradients", "a mean of means: each rank counts the same", ""),
}


@pytest.mark.parametrize("name", LOOPS)
def test_the_planted_bug_is_named(name: str, recorded: Recorded) -> None:
    what, cause, alarm = TOLD[name]
    found = against_one_process(name, recorded, "--bug")
    assert not found.same
    assert found.first
    assert (found.first.step, found.first.what) == (0, what)
    assert cause in found.first.cause
    alarms = alarms_in(recorded(name, 2, "--bug"))
    # the ranks agree with each other in what they both do wrong
    assert len(alarms) == (alarm != "")
    assert alarm in "".join(alarms)
