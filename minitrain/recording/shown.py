"""Overview of one recording: its steps, its alarms, and the time of each phase."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from minitrain.recording.alarm import Row, page_on
from minitrain.recording.format import Recording, read_recording
from minitrain.recording.judge import findings_in
from minitrain.recording.times import Times, read_times


@dataclass(frozen=True)
class Shown:
    """A recording, the findings of the rules, and its times if any."""

    recording: Recording
    findings: list[Row]
    times: Times | None

    @property
    def losses(self) -> dict[int, float]:
        """The mean of the ranks' losses, by recorded step; of the first optimizer."""
        found: dict[int, list[float]] = {}
        for rank in self.recording.ranks.values():
            for (optimizer, step), row in rank.steps.items():
                if optimizer == 0 and row.get("loss") is not None:
                    found.setdefault(step, []).append(row["loss"])
        return {step: mean(values) for step, values in sorted(found.items())}

    @property
    def num_steps(self) -> int:
        """The number of steps of the run; a lower bound if it ended early."""
        ranks = self.recording.ranks.values()
        made = [max([0, *one.end["steps"].values()]) for one in ranks if one.end]
        seen = [len({*rank.steps}) for rank in ranks]
        return max([*made, *seen, 0 if self.times is None else self.times.num_steps])

    @property
    def unfinished(self) -> list[dict[str, Any]]:
        """Each rank without an end: number of steps, and ``killed``, true if it did not
        close its file of times (it was killed, or is still running).
        """
        times = self.times
        made = Counter[int]() if times is None else Counter(times.rows["rank"].tolist())
        return [
            {
                "rank": rank,
                "steps": max(made[rank], len(one.steps)),
                "killed": times is not None and rank in times.open,
            }
            for rank, one in sorted(self.recording.ranks.items())
            if one.end is None
        ]

    def lines(self, kind: str) -> list[str]:
        """Return the lines of the findings that are an ``alarm``, or a ``note``."""
        found = [row["line"] for row in self.findings if row["kind"] == kind]
        return [line.removeprefix("minitrain: ") for line in found]

    def facts(self) -> dict[str, Any]:
        """Return the overview as plain values, ready for JSON."""
        recording, times = self.recording, self.times
        ranks = recording.ranks.values()
        header = next(iter(ranks)).header
        return {
            "folder": str(recording.folder),
            "world_size": recording.world_size,
            "missing_ranks": recording.missing,
            "ended": not self.unfinished,
            "unfinished": self.unfinished,
            "num_steps": self.num_steps,
            "num_recorded": max(len(rank.steps) for rank in ranks),
            "every": header["every"],
            "device": header["device"],
            "torch": header["torch"],
            "losses": [{"step": s, "loss": loss} for s, loss in self.losses.items()],
            "alarms": self.lines("alarm"),
            "notes": self.lines("note"),
            "pages": [*dict.fromkeys(filter(None, map(page_on, self.findings)))],
            "steps_timed": times and times.num_timed,
            "samples_per_s": times and times.samples_per_s,
            "parts": times and times.parts,
            "stragglers": times and times.stragglers.numbers(),
            "late_part": times and times.late_part,
        }


def show(folder: str | Path) -> dict[str, Any]:
    """Return an overview of the recording in ``folder``: what ``minitrain show --json``
    prints. Plain values by name: ranks, steps, losses, alarms, and ``parts``, by rank
    the mean milliseconds of each phase of a step (None if no times were recorded).

    Raises:
        UserError: The folder has no recording, or a damaged one.
    """
    return read_shown(Path(folder)).facts()


def read_shown(folder: Path) -> Shown:
    """Return the recording in ``folder``. Raises UserError as :func:`show` does."""
    recording = read_recording(folder)
    steps = [row for one in recording.ranks.values() for row in one.steps.values()]
    times = read_times(folder, waits_within=any(row.get("sharded") for row in steps))
    return Shown(recording, findings_in(recording), times)
