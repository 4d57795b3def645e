"""Ranks that make no step for a while: which of them is named, and where it is."""

import re
import subprocess
import sys
import time
from pathlib import Path
from threading import Timer

import pytest
from figures import figure
from project import ROOT
from thorough import thorough_after
from waiting import GENEROUS_S

from minitrain.recording.clock import RecordingClock
from minitrain.recording.format import read_recording
from minitrain.recording.stalls import QUESTION, Place, StallWatch, finding_of

SCRIPT = ROOT / "tests/support/stalling_loop.py"
NAMES = [("rank", "jsonl"), ("times", "csv")]
# by the kind of stall: whom the others wait for, and what is printed of rank 1
STALLS = {
    "stopped": ("1", "no answer: it has ended, was stopped or killed, or holds"),
    "deadlock": ("", r"in other of step 12 for \d+ s, at stalling_loop.py:\d+ in <mod"),
    "loader": ("1", r"in data of step 12 for \d+ s, at stalling_loop.py:\d+ in stall"),
    "disk": ("1", r"in other of step 12 for \d+ s, at stalling_loop.py:\d+ in stall"),
    "checkpoint": ("", r"in other of step 12 for \d+ s, at stalling_loop.py:\d+ in st"),
    "break": ("1", "its recording has ended|no answer: it has ended"),
}


def trained(kind: str, folder: Path) -> list[tuple[float, str]]:
    """The lines on stderr of a loop of two ranks with this kind of stall, each with the
    second in which it appeared.
    """
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    with subprocess.Popen(
        [*torchrun, "--standalone", f"--log-dir={folder}.logs", SCRIPT, kind, folder],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        limit = Timer(GENEROUS_S, process.terminate)
        limit.start()
        said = [(time.monotonic(), line) for line in process.stderr]
        limit.cancel()
    assert process.returncode == 0, said
    return said


@pytest.mark.slow
@pytest.mark.parametrize("kind", thorough_after(2, STALLS))
def test_stall_is_reported_once_and_the_run_goes_on(kind: str, tmp_path: Path) -> None:
    missing, of_rank_1 = STALLS[kind]
    lines = trained(kind, tmp_path / "run")
    said = "".join(line for _, line in lines)
    stalls = re.findall(r"minitrain: note: step \d+: stall.*", said)
    waits = f"; the others wait for rank {missing}" if missing else ""
    assert len(stalls) == 1, said
    assert stalls[0].endswith(f": no part of a step ended for 2 s{waits}")
    began, named = (
        next(second for second, line in lines if part in line)
        for part in ("it stalls", ": stall")
    )
    # timeout_s + 2 s on a quiet machine; a stall lasts 8 s
    assert figure("seconds until named", named - began, 4) < 8
    assert re.search(f"^  rank 1: {of_rank_1}", said, re.M), said
    # of unequal steps there is an alarm, too, with the same page
    pages = said.count("minitrain: see docs/symptoms/hang-in-all-reduce.md\n")
    assert pages == 1 or (kind == "break" and pages == 2)
    assert re.search(r"^  rank 0: in ", said, re.M), said
    recording = read_recording(tmp_path / "run")
    assert stalls_in(tmp_path / "run") == stalls
    assert all(rank.end for rank in recording.ranks.values())
    # nothing of the question is left
    names = [f"{kind}-{r}.{e}" for kind, e in NAMES for r in (0, 1)]
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == sorted(names)


def stalls_in(folder: Path) -> list[str]:
    ranks = read_recording(folder).ranks.values()
    notes = [note for rank in ranks for note in rank.alarms]
    return [note["line"] for note in notes if note["rule"] == "stall"]


@pytest.mark.slow
def test_pauses_are_no_stalls(tmp_path: Path) -> None:
    """Evaluation is longer than the limit, but none of its passes is."""
    said = trained("pauses", tmp_path / "run")
    assert not any(": stall" in line for _, line in said)


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
        ([SENDS, READS, None], 2, "no answer: it has ended, was stopped or killed"),
        # a pause, or a deadlock: the lines tell which
        ([READS, READS], None, "in data of step 12 for 30 s, at train.py:8 in main"),
    ],
)
def test_ranks_that_the_others_wait_for_are_named(
    places: list[Place | None], missing: int | None, line: str
) -> None:
    found, lines = finding_of(dict(enumerate(places)), 30)
    stall = "minitrain: note: step 12: stall, rank {0}: no part of a step ended for "
    stall += "30 s; the others wait for rank {0}"
    if missing is None:
        stall = "minitrain: note: step 12: stall: no part of a step ended for 30 s"
    assert found.line == stall.format(missing)
    assert len(lines) == len(places)
    assert lines[missing or 0].startswith(f"  rank {missing or 0}: {line}")


class Watched:
    """Ranks that made a step, with files in ``folder``, and what is said of them."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.lines = folder, list[bytes]()
        self.clocks = [RecordingClock(folder, rank) for rank in range(count)]
        for rank, clock in enumerate(self.clocks):
            (folder / f"rank-{rank}.jsonl").touch()
            clock.step_begins(by_closure=False)
            clock.step_ended(0, 0, recorded=False)

    def watch(self, timeouts_s: dict[int, float]) -> None:
        watches = [
            StallWatch(self.folder, rank, self.clocks[rank], limit_s, self.lines.append)
            for rank, limit_s in timeouts_s.items()
        ]
        limit = time.monotonic() + GENEROUS_S
        while not self.lines and time.monotonic() < limit:
            time.sleep(0.1)
        for one in (*watches, *self.clocks):
            one.close()


def test_ranks_that_do_not_answer_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = Watched(tmp_path, 3)
    # as a run that was killed while it asked leaves it
    (tmp_path / QUESTION).touch()
    ranks.watch({0: 0.1})
    said = capsys.readouterr().err
    assert "the others wait for ranks 1, 2\n" in said
    assert "\n  rank 2: no answer" in said


def test_rank_that_ends_its_recording_leaves_the_question_to_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = Watched(tmp_path, 2)
    ranks.clocks[1].phase = "end"
    # it would be the first to ask, and keep the other from asking
    ranks.watch({1: 0.1, 0: 1.0})
    said = capsys.readouterr().err
    assert "the others wait for rank 1\n" in said
    assert "\n  rank 1: its recording has ended\n" in said
