"""The chaos study in small, and lies that its judge must see through."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import judge
import leftovers
import pytest
from chaos_settings import Chaos
from copies import Undisturbed
from counts import summary
from faults import FAULTS
from held_memory import held_by, segments
from judge import Ran
from processes import MARK, environ, processes
from project import ROOT
from run import run_trials
from study_settings import load_study
from waiting import GENEROUS_S

STUDY = ROOT / "studies/chaos"
WANTED = {"data/runs/gloo-2/losses.csv": "a", "data/shards/index.json": "b"}
WELL = Ran(0, "Updating lock file\n", WANTED)
KILLED = Ran(255, "error: it was killed\nERROR: failed to run: x, exited with 2\n", {})
# what tests/project/test_interrupted.py does not do
FEW = ["kill_stage", "hup_group"]
KINDS = [*FAULTS] if os.environ.get("MINITRAIN_ALL") else FEW


def test_judge_has_no_objection_to_what_is_well() -> None:
    assert judge.wrong(WELL, WELL, WANTED) == []
    assert judge.wrong(KILLED, WELL, WANTED) == []
    # of a stage that was killed; by a shell that waited for it, it is 137
    for code in (-9, 137):
        line = f"ERROR: failed to run: x, exited with {code}\n"
        assert judge.wrong(replace(KILLED, said=line), WELL, WANTED) == []
    assert [judge.outcome(run) for run in (WELL, KILLED)] == ["undisturbed", "repeated"]
    restarted = replace(WELL, said="rank 1: killed; starting again (1 of 3)\n")
    later = replace(KILLED, said=restarted.said + KILLED.said)
    for first in (restarted, later):
        assert judge.wrong(first, WELL, WANTED) == []
    assert judge.outcome(restarted) == "restarted"


TRACEBACK = "Traceback (most recent call last):\n  File ...\n"


def has(**digests: str) -> Ran:
    return replace(WELL, digests={**WANTED, **digests})


def said(text: str) -> Ran:
    return replace(KILLED, said=text)


FEWER = {"data/shards/index.json": "b"}
TWO_LINES = "first run printed 2 lines of error"
AGAIN = "1; starting again\nerror: one\n"
LIES = [
    (has(**{"data/shards/index.json": "c"}), WELL, "first run: data/shards/index.json"),
    (KILLED, replace(WELL, digests=FEWER), "second run: data/runs/gloo-2/losses.csv"),
    (KILLED, has(**{"data/shards/more": "c"}), "second run: data/shards/more differs"),
    (replace(KILLED, code=None), WELL, "first run hung"),
    (KILLED, replace(WELL, code=None), "second run hung"),
    (KILLED, replace(KILLED, code=255), "second run ended with exit code 255"),
    (said(TRACEBACK + KILLED.said), WELL, "first run printed a traceback"),
    (KILLED, replace(WELL, said=TRACEBACK), "second run printed a traceback"),
    (said("error: one\n" + KILLED.said), WELL, TWO_LINES),
    (said(AGAIN + KILLED.said), WELL, TWO_LINES),
    (
        said("ERROR: failed to run: x, exited with 2\n"),
        WELL,
        "first run failed without a word",
    ),
    (said(""), WELL, "first run ended without a word"),
]


@pytest.mark.parametrize(("first", "second", "expected"), LIES)
def test_judge_sees_a_lie(first: Ran, second: Ran, expected: str) -> None:
    found = judge.wrong(first, second, WANTED)
    assert any(one.startswith(expected) for one in found), found


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A copy and its temporary folder, both empty."""
    for name in ("copy", "temporary"):
        (tmp_path / name).mkdir()
    return tmp_path / "copy", tmp_path / "temporary"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "GONE_S", 0.2)
    monkeypatch.setattr(leftovers, "segments", not_of_other_tests)


def not_of_other_tests() -> set[str]:
    """Segments that nobody holds, or a process of a trial."""

    def is_another(pid: int) -> bool:
        names = [one.partition(b"=")[0] for one in environ(Path(f"/proc/{pid}"))]
        return pid != os.getpid() and MARK.encode() not in names

    return segments() - held_by(is_another)


def left_in(folders: tuple[Path, Path], shared: set[str] | None = None) -> list[str]:
    known = leftovers.segments() if shared is None else shared
    return leftovers.left_behind(["a mark"], *folders, known)


def test_judge_sees_files_that_are_left(folders: tuple[Path, Path]) -> None:
    copy, temporary = folders
    (copy / ".dvc").mkdir()
    # DVC's own business
    (copy / ".dvc/its.tmp").touch()
    (copy / "result.csv").touch()
    assert left_in(folders) == []
    for where in ("data/shards/.world-2.4711.tmp", "a.tmp"):
        (copy / where).parent.mkdir(parents=True, exist_ok=True)
        (copy / where).touch()
        assert left_in(folders) == [f"left behind: file {where}"]
        (copy / where).unlink()
    checkpoint = copy / ".minitrain/checkpoints/gloo-2-0123456789ab/step-25"
    checkpoint.mkdir(parents=True)
    (line,) = left_in(folders)
    assert line.endswith("gloo-2-0123456789ab/step-25")
    checkpoint.rmdir()
    (temporary / "minitrain-meeting-x").mkdir()
    assert "left behind: temporary minitrain-meeting-x" in left_in(folders)


def test_judge_sees_shared_memory(folders: tuple[Path, Path]) -> None:
    before = leftovers.segments()
    segment = Path("/dev/shm") / f"chaos-{os.getpid()}"
    segment.touch()
    try:
        left = left_in(folders, before)
    finally:
        segment.unlink()
    assert f"left behind: shared memory {segment.name}" in left


def test_judge_sees_a_process_in_a_session_of_its_own(
    folders: tuple[Path, Path],
) -> None:
    process = subprocess.Popen(
        ["sleep", "60"], env={**os.environ, MARK: "a mark"}, start_new_session=True
    )
    try:
        assert left_in(folders) == [f"left behind: process {process.pid} (other)"]
    finally:
        process.kill()
        process.wait()
    assert processes("a mark") == {}


@pytest.mark.pipeline
@pytest.mark.real_launch
@pytest.mark.timeout(3600)
def test_every_fault_ends_in_the_bytes_of_the_undisturbed_run(
    undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "GONE_S", GENEROUS_S)
    settings = load_study(STUDY, Chaos).model_copy(update={"jobs": 2, "limit_s": 240.0})
    trials = run_trials(settings, undisturbed, len(KINDS), KINDS)
    assert [trial.kind for trial in trials] == KINDS
    wrong = [f"{t.trial} {t.kind} {t.target} ({t.hit}): {t.wrong}" for t in trials]
    assert [line for line, t in zip(wrong, trials, strict=True) if t.wrong] == []
    counted = summary(trials)
    assert (counted["trials"], counted["wrong"]) == (len(KINDS), 0)
    # else nothing was disturbed
    hit = {word for trial in trials for word in trial.hit.replace(",", "").split()}
    assert {"dvc", "rank", "stage"} & hit
    if KINDS != FEW:
        assert counted["went_on_from_a_checkpoint"] >= 1
        assert sum(trial.detection_s is not None for trial in trials) > len(KINDS) / 3


def test_study_says_by_its_exit_code_that_a_trial_is_wrong(tmp_path: Path) -> None:
    script = (
        "import run; from runs import Trial\n"
        "run.make_undisturbed = lambda folder: None\n"
        "run.run_trial = lambda number, *_: Trial(number, 'port', '', wrong='it')\n"
        "from minitrain.core.errors import run_stage; run_stage(run.main)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "--trials", "3", "--out", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    line = "error: 3 of 3 trials are wrong, the first of them trial 0 (port): it\n"
    assert done.stderr.endswith(line)
    assert (tmp_path / "results.csv").read_text().count("\n") == 4
