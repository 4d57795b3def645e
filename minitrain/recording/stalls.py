"""Detection of stalls: the phase and source line of each rank while no step ends.

A thread of each rank watches the clock. If no phase ended for a while, the first rank
that notices asks the others, by a file in the folder of the recording, and prints a
line for each. No port is opened, and the run goes on.
"""

import json
import site
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

from minitrain.core.printable import print_note
from minitrain.recording.alarm import Alarm, in_ranks, page_on
from minitrain.recording.clock import Phase, RecordingClock
from minitrain.recording.format import line_of, ranks_in

LOOK_EVERY_S = 0.25
# how long the others have to answer
ANSWER_S = 1.0
QUESTION = "stall.json"
NO_ANSWER = "no answer: it has ended, was stopped or killed, or holds Python's lock"
# in the order of a step
PHASES: tuple[Phase, ...] = get_args(Phase)
# files that are not the user's own
NOT_OURS = (*site.getsitepackages(), sysconfig.get_path("stdlib"))
NOT_OURS += (str(Path(__file__).parents[1]),)


@dataclass(frozen=True)
class Place:
    """Where a rank is: for ``seconds`` in ``phase``, after ``steps`` completed steps,
    at a ``line`` of the user's code, as text ("" if unknown).
    """

    steps: int
    phase: Phase
    seconds: float
    line: str

    @property
    def progress(self) -> tuple[int, int]:
        """A pair (steps, phase index), larger for a rank that is farther ahead."""
        return self.steps, PHASES.index(self.phase)

    def __str__(self) -> str:
        if self.phase == "end":
            return "its recording has ended"
        phase = f"in {self.phase} of step {self.steps}"
        return f"{phase} for {self.seconds:.0f} s{self.line}"


class StallWatch:
    """Watch the ``clock`` of ``rank`` in a thread: if no phase ended for ``timeout_s``
    seconds after the first step, report the place of each rank that records in
    ``folder``, once per stall. ``write`` gets the finding, as a line of the recording.
    """

    def __init__(
        self,
        folder: Path,
        rank: int,
        clock: RecordingClock,
        timeout_s: float,
        write: Callable[[bytes], None],
    ) -> None:
        self._folder, self._rank, self._clock = folder, rank, clock
        self._write = write
        self._timeout_s, self._ended = timeout_s, threading.Event()
        # a question that a killed run left would keep all ranks from asking
        (folder / QUESTION).unlink(missing_ok=True)
        self._thread = threading.Thread(
            target=self._look, name="minitrain stalls", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End the thread, and remove the file that states this rank's place."""
        self._ended.set()
        self._thread.join()
        _path_of_answer(self._folder, self._rank).unlink(missing_ok=True)

    def _look(self) -> None:
        answered = asked = 0.0
        question = self._folder / QUESTION
        while not self._ended.wait(LOOK_EVERY_S):
            with suppress(OSError, ValueError):
                stamped = self._clock.stamped_s
                waited = time.monotonic() - stamped
                if asked and asked != stamped:
                    # the run went on
                    question.unlink(missing_ok=True)
                    asked = 0.0
                if question.exists() and answered != question.stat().st_mtime:
                    answered = question.stat().st_mtime
                    self._answer()
                # a rank that ends its recording has left the loop, and only answers
                elif self._is_training() and waited > self._timeout_s and not asked:
                    asked = stamped
                    answered = self._ask(question)
        if asked:
            question.unlink(missing_ok=True)

    def _is_training(self) -> bool:
        return self._clock.steps > 0 and self._clock.phase != "end"

    def _answer(self) -> None:
        path = _path_of_answer(self._folder, self._rank)
        path.with_suffix(".new").write_text(json.dumps(asdict(self._place())))
        path.with_suffix(".new").replace(path)

    def _ask(self, question: Path) -> float:
        # mode "x" fails if another rank asks
        with open(question, "x"):
            asked = question.stat().st_mtime
        self._ended.wait(ANSWER_S)
        places: dict[int, Place | None] = {}
        for rank in ranks_in(self._folder):
            path = _path_of_answer(self._folder, rank)
            places[rank] = None
            with suppress(OSError, ValueError):
                places[rank] = Place(**json.loads(path.read_text()))
                path.unlink()
        places[self._rank] = self._place()
        if not self._is_training():
            return asked
        found, lines = finding_of(places, self._timeout_s)
        self._write(line_of(found.row()))
        for line in (found.line, *lines, f"minitrain: see {page_on(found.row())}"):
            print_note(line)
        return asked

    def _place(self) -> Place:
        clock = self._clock
        seconds = time.monotonic() - clock.stamped_s
        return Place(clock.steps, clock.phase, seconds, _line_of(clock.thread))


def finding_of(
    places: Mapping[int, Place | None], timeout_s: float
) -> tuple[Alarm, list[str]]:
    """Return a note on a stall, which names the ranks that the others wait for, and a
    line of text for each rank. ``places``: by rank; None for one that did not answer.
    """
    inside = {rank: p for rank, p in places.items() if p and p.phase != "end"}
    farthest = max(place.progress for place in inside.values())
    missing = [rank for rank in places if rank not in inside]
    missing = missing or [rank for rank, p in inside.items() if p.progress < farthest]
    what = f"no part of a step ended for {timeout_s:g} s"
    if missing:
        what += f"; the others wait for {in_ranks(missing)}"
    lines = [f"  rank {rank}: {places[rank] or NO_ANSWER}" for rank in sorted(places)]
    return Alarm("stall", farthest[0], what, ranks=missing, severe=False), lines


def _path_of_answer(folder: Path, rank: int) -> Path:
    return folder / f"stall-{rank}.json"


def _line_of(thread: int) -> str:
    # find the innermost line of the user's own code
    frame = sys._current_frames().get(thread)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(("<", *NOT_OURS)):
            return f", at {Path(file).name}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return ""
