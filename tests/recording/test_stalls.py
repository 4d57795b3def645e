"""Ranks that make no step for a while: which of them is named, and where it is."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from project import ROOT
from waiting import GENEROUS_S

from minitrain.recording.format import read_recording
from minitrain.recording.stalls import Place, judge

SCRIPT = ROOT / "tests/support/stalling_loop.py"
NAMES = [("rank", "jsonl"), ("times", "csv")]
# by the kind of stall: whom the others wait for, and what is printed of rank 1
STALLS = {
    "loader": ("1", r"in data of step 12 for \d+ s, at stalling_loop.py:\d+ in stall"),
    "disk": ("1", r"in other of step 12 for \d+ s, at stalling_loop.py:\d+ in stall"),
    "stopped": ("1", "no answer: it was stopped or killed, or is in code that holds"),
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


def test_rank_that_is_behind_is_waited_for() -> None:
    places = {
        0: Place(phase="communication", **AT_12),
        1: Place(phase="data", **AT_12),
        2: Place(phase="communication", **AT_12),
    }
    found, lines = judge(places, [], 30)
    assert found.line == (
        "minitrain: note: step 12: stall, rank 1: no part of a step ended for 30 s; "
        "the others wait for rank 1"
    )
    assert lines == [
        "  rank 0: in communication of step 12 for 30 s, at train.py:8 in main",
        "  rank 1: in data of step 12 for 30 s, at train.py:8 in main",
        "  rank 2: in communication of step 12 for 30 s, at train.py:8 in main",
    ]


def test_rank_whose_recording_has_ended_is_waited_for() -> None:
    waiting = Place(phase="communication", **AT_12)
    for ended in ({1: None}, {1: Place(phase="end", **AT_12)}):
        found, lines = judge(
            {0: waiting, **ended}, [1] if None in ended.values() else [], 30
        )
        assert found.ranks == [1]
        assert lines[1] == "  rank 1: its recording has ended"


def test_ranks_at_the_same_point_wait_for_none() -> None:
    """A pause, or a deadlock: the lines tell which."""
    found, lines = judge(dict.fromkeys((0, 1), Place(phase="data", **AT_12)), [], 30)
    assert (found.ranks, found.severe) == ([], False)
    assert found.what == "no part of a step ended for 30 s"
    assert len(lines) == 2
