"""Faults injected into `dvc repro`, then a second run: trials of the chaos study, and
faulty outcomes that its judge must reject.
"""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGKILL, SIGTERM, Signals
from typing import NamedTuple

import judge
import leftovers
import pytest
from copies import make_undisturbed
from faults import FAULTS
from held_memory import held_by, segments
from judge import Ran
from processes import MARK, environ, kill_all, processes, send, wait_until, with_role
from project import PARAMS_FILE, run_python
from runs import Trial
from thorough import thorough_after
from trials import run_trial
from waiting import GENEROUS_S
from world import START_S, World
from wreck import PAIR, Fault

WANTED = {"data/runs/gloo-2/losses.csv": "a", "data/shards/index.json": "b"}
WELL = Ran(0, "Updating lock file\n", WANTED)
KILLED = Ran(255, "error: it was killed\nERROR: failed to run: x, exited with 2\n", {})


def test_judge_has_no_objection_to_what_is_well() -> None:
    assert judge.wrong(WELL, WELL, WANTED) == []
    assert judge.wrong(KILLED, WELL, WANTED) == []
    # of a stage that was killed; by a shell that waited for it, it is 137
    for code in (-9, 137):
        line = f"ERROR: failed to run: x, exited with {code}\n"
        assert judge.wrong(replace(KILLED, said=line), WELL, WANTED) == []
    assert [judge.outcome(run) for run in (WELL, KILLED)] == ["undisturbed", "repeated"]
    restarted = replace(WELL, said="rank 1: killed; restarting (1 of 3)\n")
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
SILENT = "ERROR: failed to run: x, exited with 2\n"
LIES = [
    (has(**{"data/shards/index.json": "c"}), WELL, "first run: data/shards/index.json"),
    (KILLED, replace(WELL, digests=FEWER), "second run: data/runs/gloo-2/losses.csv"),
    (KILLED, has(**{"data/shards/more": "c"}), "second run: data/shards/more differs"),
    (replace(KILLED, code=None), WELL, "first run hung"),
    (KILLED, replace(KILLED, code=255), "second run ended with exit code 255"),
    (said(TRACEBACK + KILLED.said), WELL, "first run printed a traceback"),
    (said("error: one\n" + KILLED.said), WELL, "first run printed 2 lines of error"),
    (said(SILENT), WELL, "first run failed without a word"),
    (said(""), WELL, "first run ended without a word"),
]


@pytest.mark.parametrize(("first", "second", "expected"), LIES)
def test_judge_sees_a_lie(first: Ran, second: Ran, expected: str) -> None:
    found = judge.wrong(first, second, WANTED)
    assert any(one.startswith(expected) for one in found), found


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A copy and its temporary folder, both empty."""
    monkeypatch.setattr(leftovers, "GONE_S", 0.2)
    monkeypatch.setattr(leftovers, "segments", not_of_other_tests)
    for name in ("copy", "temporary"):
        (tmp_path / name).mkdir()
    return tmp_path / "copy", tmp_path / "temporary"


def not_of_other_tests() -> set[str]:
    """Segments held by a process of a trial, or by none."""

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


def test_judge_sees_shared_memory_and_a_process_in_a_session_of_its_own(
    folders: tuple[Path, Path],
) -> None:
    before = leftovers.segments()
    segment = Path("/dev/shm") / f"chaos-{os.getpid()}"
    segment.touch()
    process = subprocess.Popen(
        ["sleep", "60"], env={**os.environ, MARK: "a mark"}, start_new_session=True
    )
    try:
        assert left_in(folders, before) == [
            f"left behind: process {process.pid} (other)",
            f"left behind: shared memory {segment.name}",
        ]
    finally:
        segment.unlink()
        process.kill()
        process.wait()
    assert processes("a mark") == {}


# true if runs resume from checkpoints
CHECKPOINTS = "\ncheckpoint:" in PARAMS_FILE.read_text()
ORPHAN = "error: stopped by SIGTERM"


def to(number: Signals, role: str) -> Fault:
    """Send a signal to the first process with that role once ranks train."""

    def do(world: World) -> str:
        assert len(world.await_role("rank")) > 0
        # they import torch for a while
        limit_s = START_S if CHECKPOINTS else 0.3 * world.took_s
        wait_until(lambda: world.ended or world.checkpoints(), limit_s)
        if role == "group":
            world.signal_group(number)
        elif role == "all":
            kill_all(world.mark)
        else:
            send(number, with_role(world.mark, role)[:1])
        return role

    return Fault(do, PAIR)


class Told(NamedTuple):
    """The exit code of `dvc repro`, and its line."""

    code: int
    line: str


# exit code 0: the ranks restarted
CASES: dict[str, tuple[Fault, Told | None]] = {
    "Ctrl-C": (to(SIGINT, "group"), Told(255, "error: interrupted")),
    "kill -9 of a rank": (to(SIGKILL, "rank"), Told(0, "")),
    "kill -9 of DVC": (to(SIGKILL, "dvc"), Told(-9, ORPHAN)),
    "kill -9 of a stage": (to(SIGKILL, "stage"), None),
    "a closed terminal": (to(SIGHUP, "group"), None),
    "SIGTERM to DVC": (to(SIGTERM, "dvc"), Told(-15, ORPHAN)),
    "kill -9 of all": (to(SIGKILL, "all"), Told(-9, "")),
    # the study's, at moments drawn at random
    **{name: (fault, None) for name, fault in FAULTS.items()},
}


@pytest.fixture(scope="module")
def trials(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Trial]:
    """The trial of each case, two at a time, and an undisturbed copy."""
    items = [item for item in request.session.items if item.path == request.path]
    names = [x.callspec.params["name"] for x in items if "trials" in x.fixturenames]
    done = make_undisturbed(tmp_path_factory.mktemp("chaos") / "undisturbed")

    def run(numbered: tuple[int, str]) -> Trial:
        number, name = numbered
        return run_trial(number, name, CASES[name][0], 35000, done, 2 * GENEROUS_S)

    with ThreadPoolExecutor(2) as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr(leftovers, "segments", not_of_other_tests)
        return dict(zip(names, pool.map(run, enumerate(names)), strict=True))


@pytest.mark.pipeline
@pytest.mark.real_launch
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", thorough_after(4, CASES))
def test_next_repro_ends_in_the_same_bytes(trials: dict[str, Trial], name: str) -> None:
    """Also checks that no process, segment or temporary file is left."""
    trial, told = trials[name], CASES[name][1]
    assert trial.wrong == ""
    if told is not None:
        assert trial.exit_code == told.code
        assert (trial.outcome == "restarted") == (told.code == 0)
        assert re.fullmatch(told.line, trial.said), trial.said
        assert (trial.went_on_from is not None) == (CHECKPOINTS and told.code != 0)


def test_study_says_by_its_exit_code_that_a_trial_is_wrong(tmp_path: Path) -> None:
    script = (
        "import run; from runs import Trial\n"
        "run.make_undisturbed = lambda folder: None\n"
        "run.run_trial = lambda number, *_: Trial(number, 'port', '', wrong='it')\n"
        "from minitrain.core.errors import run_stage; run_stage(run.main)"
    )
    arguments = ("-c", script, "--trials", "3", "--out", tmp_path)
    done = run_python(*arguments, PYTHONPATH=os.pathsep.join(sys.path))
    assert done.returncode == 1
    line = "error: 3 of 3 trials are wrong, the first of them trial 0 (port): it\n"
    assert done.stderr.endswith(line)
    assert (tmp_path / "results.csv").read_text().count("\n") == 4
