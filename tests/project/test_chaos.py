"""Faults injected into `dvc repro`, then a second run: trials of the chaos study, and
faulty outcomes that its judge must reject.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM, Signals

import judge
import leftovers
import pytest
import run as chaos
from copies import make_undisturbed
from faults import FAULTS
from held_memory import held_by, segments
from judge import Ran
from processes import MARK, environ, kill_all, processes, send, wait_until, with_role
from runs import Trial
from thorough import thorough_after
from trials import run_trial
from waiting import GENEROUS_S
from world import START_S, World
from wreck import PAIR, Fault

from minitrain.core.errors import EvidenceError

WANTED = {"data/runs/gloo-2/losses.csv": "a", "data/shards/index.json": "b"}
WELL = Ran(0, "Updating lock file\n", WANTED)
KILLED = Ran(255, "error: it was killed\nERROR: failed to run: x, exited with 2\n", {})


RESTARTED = replace(WELL, said="rank 1: killed; restarting (1 of 3)\n")


def said(text: str) -> Ran:
    return replace(KILLED, said=text)


def test_judge_has_no_objection_to_what_is_well() -> None:
    # of a stage that was killed; by a shell that waited for it, it is 137
    lines = [f"ERROR: failed to run: x, exited with {code}\n" for code in (-9, 137)]
    later = said(RESTARTED.said + KILLED.said)
    for first in (WELL, KILLED, RESTARTED, later, *map(said, lines)):
        assert judge.wrong(first, WELL, WANTED) == []
    outcomes = [judge.outcome(run) for run in (WELL, KILLED, RESTARTED)]
    assert outcomes == ["undisturbed", "repeated", "restarted"]


INDEX, LOSSES = "data/shards/index.json", "data/runs/gloo-2/losses.csv"
TRACEBACK = "Traceback (most recent call last):\n  File ...\n"
SILENT = "ERROR: failed to run: x, exited with 2\n"
LIES = [
    (replace(WELL, digests={**WANTED, INDEX: "c"}), WELL, f"first run: {INDEX}"),
    (KILLED, replace(WELL, digests={INDEX: "b"}), f"second run: {LOSSES}"),
    (KILLED, replace(WELL, digests={**WANTED, "x": "c"}), "second run: x differs"),
    (replace(KILLED, code=None), WELL, "first run hung"),
    (KILLED, replace(KILLED, code=255), "second run ended with exit code 255"),
    (said(TRACEBACK + KILLED.said), WELL, "first run printed a traceback"),
    (said("error: one\n" + KILLED.said), WELL, "first run printed 2 lines of error"),
    (said(SILENT), WELL, "first run failed without a word"),
    (said(""), WELL, "first run ended without a word"),
]


def test_judge_sees_a_lie() -> None:
    for first, second, expected in LIES:
        found = judge.wrong(first, second, WANTED)
        assert any(one.startswith(expected) for one in found), (expected, found)


def not_of_other_tests() -> set[str]:
    """Segments held by a process of a trial, or by none."""

    def is_another(pid: int) -> bool:
        names = [one.partition(b"=")[0] for one in environ(Path(f"/proc/{pid}"))]
        return pid != os.getpid() and MARK.encode() not in names

    return segments() - held_by(is_another)


def test_judge_sees_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files, shared memory, and a process in a session of its own."""
    monkeypatch.setattr(leftovers, "GONE_S", 0.2)
    monkeypatch.setattr(leftovers, "segments", not_of_other_tests)
    copy, temporary = tmp_path / "copy", tmp_path / "temporary"
    checkpoint = ".minitrain/checkpoints/gloo-2-0123456789ab/step-25"
    for folder in (copy / ".dvc", copy / checkpoint, temporary / "minitrain-x"):
        folder.mkdir(parents=True)
    # the first is DVC's own business
    for file in (".dvc/its.tmp", "result.csv", "a.tmp"):
        (copy / file).touch()
    before = leftovers.segments()
    segment = Path("/dev/shm") / f"chaos-{os.getpid()}"
    segment.touch()
    process = subprocess.Popen(
        ["sleep", "60"], env={**os.environ, MARK: "a mark"}, start_new_session=True
    )
    try:
        assert leftovers.left_behind(["a mark"], copy, temporary, before) == [
            f"left behind: process {process.pid} (other)",
            f"left behind: shared memory {segment.name}",
            "left behind: temporary minitrain-x",
            "left behind: file a.tmp",
            f"left behind: file {checkpoint}",
        ]
    finally:
        segment.unlink()
        process.kill()
        process.wait()
    assert processes("a mark") == {}


ORPHAN = "error: stopped by SIGTERM"


def to(number: Signals, role: str) -> Fault:
    """Send a signal to the first process with that role once ranks train."""

    def do(world: World) -> str:
        assert len(world.await_role("rank")) > 0
        # they import torch for a while
        wait_until(lambda: world.ended or world.checkpoints(), START_S)
        if role == "group":
            world.signal_group(number)
        elif role == "all":
            kill_all(world.mark)
        else:
            send(number, with_role(world.mark, role)[:1])
        return role

    return Fault(do, PAIR)


def torn(file: str) -> Fault:
    """Kill all, as DVC writes this file."""

    def do(world: World) -> str:
        world.await_role("stage")
        kill_all(world.mark)
        (world.folder / file).write_text("stages:\n  shard:\n    md5\n    cmd: x\n")
        return file

    return Fault(do, ("shard",))


# the exit code of `dvc repro`, and its line; with code 0 the ranks restarted
CASES: dict[str, tuple[Fault, tuple[int, str] | None]] = {
    "a torn dvc.lock": (torn("dvc.lock"), None),
    "Ctrl-C": (to(SIGINT, "group"), (255, "error: interrupted")),
    "kill -9 of a rank": (to(SIGKILL, "rank"), (0, "")),
    "kill -9 of DVC": (to(SIGKILL, "dvc"), (-9, ORPHAN)),
    "SIGTERM to DVC": (to(SIGTERM, "dvc"), (-15, ORPHAN)),
    "kill -9 of all": (to(SIGKILL, "all"), (-9, "")),
    "a torn rwlock": (torn(".dvc/tmp/rwlock"), None),
    # the study's, at moments drawn at random, also of a stage or a closed terminal
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
@pytest.mark.parametrize("name", thorough_after(3, CASES))
def test_next_repro_ends_in_the_same_bytes(trials: dict[str, Trial], name: str) -> None:
    """Also checks that no process, segment or temporary file is left."""
    trial, told = trials[name], CASES[name][1]
    assert trial.wrong == ""
    assert trial.outcome == "repaired" or not name.startswith("a torn")
    if told is not None:
        code, line = told
        assert (trial.exit_code, trial.said) == (code, line)
        assert (trial.outcome == "restarted") == (code == 0)
        assert (trial.went_on_from is not None) == (code != 0)


def test_wrong_trial_is_evidence_that_says_no(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = Trial(0, "port", "", wrong="it")
    monkeypatch.setattr(chaos, "make_undisturbed", lambda folder: None)
    monkeypatch.setattr(chaos, "run_trial", lambda *_: lost)
    monkeypatch.setattr(sys, "argv", ["run", "--trials", "3", "--out", str(tmp_path)])
    line = r"^3 of 3 trials are wrong, the first of them trial 0 \(port\): it$"
    with pytest.raises(EvidenceError, match=line):
        chaos.main()
    assert (tmp_path / "results.csv").read_text().count("\n") == 4
