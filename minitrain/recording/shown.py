"""Overview of one recording: its steps, its alarms, and the time of each phase."""

from collections import Counter
from pathlib import Path
from statistics import mean
from typing import Any

from minitrain.recording.alarm import page_on
from minitrain.recording.format import OfRank, Recording, read_recording
from minitrain.recording.judge import findings_in
from minitrain.recording.times import Times, read_times


def show(folder: str | Path) -> dict[str, Any]:
    """Return an overview of the recording in ``folder``: what ``minitrain show --json``
    prints. Plain values by name, such as losses, alarms, notes, and ``parts``, by rank
    the mean milliseconds of each phase of a step (None if no times were recorded).

    Raises:
        UserError: The folder has no recording, or a damaged one.
    """
    recording = read_recording(Path(folder))
    findings, ranks = findings_in(recording), [*recording.ranks.values()]
    steps = [row for one in ranks for row in one.steps.values()]
    waits_within = any(row.get("sharded") for row in steps)
    times = read_times(Path(folder), waits_within=waits_within)
    unfinished = _unfinished(recording, times)
    lines: dict[str, list[str]] = {"alarm": [], "note": []}
    for row in findings:
        lines[row["kind"]].append(row["line"].removeprefix("minitrain: "))
    return {
        "folder": str(recording.folder),
        "world_size": recording.world_size,
        "missing_ranks": recording.missing,
        "ended": not unfinished,
        "unfinished": unfinished,
        "num_steps": _num_steps(ranks, times),
        "num_recorded": max(map(_recorded, ranks)),
        "every": ranks[0].header["every"],
        "device": ranks[0].header["device"],
        "torch": ranks[0].header["torch"],
        "losses": _losses(ranks),
        "alarms": lines["alarm"],
        "notes": lines["note"],
        "pages": [*dict.fromkeys(filter(None, map(page_on, findings)))],
        "steps_timed": times and times.num_timed,
        "samples_per_s": times and times.samples_per_s,
        "parts": times and times.parts,
        "stragglers": times and times.stragglers.numbers(),
        "late_part": times and times.late_part,
    }


def _losses(ranks: list[OfRank]) -> list[dict[str, Any]]:
    # the mean of the ranks' losses, by recorded step; of the first optimizer
    found: dict[int, list[float]] = {}
    for rank in ranks:
        for (optimizer, step), row in rank.steps.items():
            if optimizer == 0 and row.get("loss") is not None:
                found.setdefault(step, []).append(row["loss"])
    return [{"step": step, "loss": mean(of)} for step, of in sorted(found.items())]


def _num_steps(ranks: list[OfRank], times: Times | None) -> int:
    # a lower bound if the run ended early
    made = [max([0, *one.end["steps"].values()]) for one in ranks if one.end]
    seen = map(_recorded, ranks)
    return max([*made, *seen, 0 if times is None else times.num_steps])


def _recorded(rank: OfRank) -> int:
    # of several optimizers, the one with the most steps
    return max(Counter(number for number, _ in rank.steps).values(), default=0)


def _unfinished(recording: Recording, times: Times | None) -> list[dict[str, Any]]:
    # each rank without an end: number of steps, and ``killed``, true if it did not
    # close its file of times (it was killed, or is still running)
    made = Counter[int]() if times is None else Counter(times.rows["rank"].tolist())
    return [
        {
            "rank": rank,
            "steps": max(made[rank], _recorded(one)),
            "killed": times is not None and rank in times.open,
        }
        for rank, one in sorted(recording.ranks.items())
        if one.end is None
    ]
