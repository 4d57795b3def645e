"""Ranks that make no step for a while: which of them is named, and where it is."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from project import ROOT
from waiting import GENEROUS_S

from minitrain.recording.clock import RecordingClock
from minitrain.recording.format import read_recording
from minitrain.recording.stalls import Place, StallWatch, finding_of

SCRIPT = ROOT / "tests/support/stalling_loop.py"
NAMES = [("rank", "jsonl"), ("times", "csv")]
# by the kind of stall: whom the others wait for, and what is printed of rank 1
STALLS = {
    "loader": ("1", r"in data of step 12 for \d+ s, at stalling_loop.py:\d+ in stall"),
    "disk": ("1", r"in other of step 12 for \d+ s, at stalling_loop.py:\d+ in stall"),
    "stopped": ("1", "no answer: it was stopped or killed, or holds Python's lock"),
    "deadlock": ("", r"in other of step 12 for \d+ s, at stalling_loop.py:\d+ in <mod"),
    "checkpoint": ("", r"in other of step 12 for \d+ s, at stalling_loop.py:\d+ in st"),
}


def trained(kind: str, folder: Path) -> str:
    """What two ranks print on stderr of a loop with this kind of stall."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    done = subprocess.run(
        [*torchrun, "--standalone", f"--log-dir={folder}.logs", SCRIPT, kind, folder],
        capture_output=True,
        text=True,
        timeout=GENEROUS_S,
        check=True,
    )
    return done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "stopped",
        "deadlock",
        pytest.param("loader", marks=pytest.mark.thorough),
        pytest.param("disk", marks=pytest.mark.thorough),
        pytest.param("checkpoint", marks=pytest.mark.thorough),
    ],
)
def test_stall_is_reported_once_and_the_run_goes_on(kind: str, tmp_path: Path) -> None:
    missing, of_rank_1 = STALLS[kind]
    said = trained(kind, tmp_path / "run")
    stalls = re.findall(r"minitrain: note: step \d+: stall.*", said)
    waits = f"; the others wait for rank {missing}" if missing else ""
    assert len(stalls) == 1, said
    assert stalls[0].endswith(f": no part of a step ended for 2 s{waits}")
    assert re.search(f"^  rank 1: {of_rank_1}", said, re.M), said
    assert said.count("minitrain: see docs/symptoms/hang-in-all-reduce.md\n") == 1
    assert re.search(r"^  rank 0: in ", said, re.M), said
    recording = read_recording(tmp_path / "run")
    notes = [a for rank in recording.ranks.values() for a in rank.alarms]
    assert [note["line"] for note in notes] == stalls
    assert all(rank.end for rank in recording.ranks.values())
    # nothing of the question is left
    names = [f"{kind}-{r}.{e}" for kind, e in NAMES for r in (0, 1)]
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == sorted(names)


@pytest.mark.slow
def test_run_without_a_stall_says_nothing(tmp_path: Path) -> None:
    assert ": stall" not in trained("none", tmp_path / "run")


AT_12 = {"steps": 12, "seconds": 30.0, "line": ", at train.py:8 in main"}
SENDS, READS, ENDED = (
    Place(phase=phase, **AT_12) for phase in ("communication", "data", "end")
)


@pytest.mark.parametrize(
    ("places", "missing", "line"),
    [
        (
            [SENDS, READS, SENDS],
            1,
            "in data of step 12 for 30 s, at train.py:8 in main",
        ),
        ([SENDS, ENDED], 1, "its recording has ended"),
        ([SENDS, None], 1, "its recording has ended"),
        ([SENDS, READS, None], 2, "no answer: it was stopped or killed, or holds"),
        # a pause, or a deadlock: the lines tell which
        ([READS, READS], None, "in data of step 12 for 30 s, at train.py:8 in main"),
    ],
)
def test_ranks_that_the_others_wait_for_are_named(
    places: list[Place | None], missing: int | None, line: str
) -> None:
    ended = [r for r, p in enumerate(places) if p is None and "has ended" in line]
    found, lines = finding_of(dict(enumerate(places)), ended, 30)
    stall = "minitrain: note: step 12: stall, rank {0}: no part of a step ended for "
    stall += "30 s; the others wait for rank {0}"
    if missing is None:
        stall = "minitrain: note: step 12: stall: no part of a step ended for 30 s"
    assert found.line == stall.format(missing)
    assert len(lines) == len(places)
    assert lines[missing or 0].startswith(f"  rank {missing or 0}: {line}")


def test_killed_rank_is_named_though_another_ended_for_it() -> None:
    """The rank that lost its connection closed its files."""
    found, _ = finding_of({0: SENDS, 1: None, 2: None}, [1], 30)
    assert "the others wait for ranks 1, 2" in found.line


def test_rank_whose_files_have_an_end_has_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clocks = [RecordingClock(tmp_path, rank) for rank in range(3)]
    for rank, clock in enumerate(clocks):
        (tmp_path / f"rank-{rank}.jsonl").touch()
        clock.step_begins()
        clock.step_ended(0, 0, recorded=False)
    clocks[1].close()
    lines: list[bytes] = []
    watch = StallWatch(tmp_path, 0, clocks[0], 0.1, lines.append)
    limit = time.monotonic() + GENEROUS_S
    while not lines and time.monotonic() < limit:
        time.sleep(0.1)
    watch.close()
    for clock in clocks:
        clock.close()
    said = capsys.readouterr().err
    assert "the others wait for ranks 1, 2\n" in said
    assert "\n  rank 1: its recording has ended\n" in said
    assert "\n  rank 2: no answer" in said
