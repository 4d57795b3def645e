"""A recording in words: the lines of ``show``."""

from typing import TYPE_CHECKING, Any

from minitrain.core.printable import as_lines
from minitrain.recording.alarm import in_ranks, lacks
from minitrain.report.numbers import ms, percent, plural, thousands

if TYPE_CHECKING:
    from minitrain.recording.shown import Shown
    from minitrain.recording.times import TimesCompared

# milliseconds, as times are written: none of a step may be
LEAST_MS = 1e-4
# of ranks that a table has a column for
SHOWN_RANKS = 8
PARTS = {
    "data_ms": "data, and what is between steps",
    "forward_ms": "forward and loss",
    "backward_ms": "backward",
    "wait_ms": "wait for other ranks",
    "comm_exposed_ms": "exposed communication",
    "other_ms": "other, such as clipping",
    "optimizer_ms": "optimizer",
    "step_ms": "step",
}


def in_words(shown: "Shown") -> list[str]:
    """Return the lines of one recording."""
    facts = shown.facts()
    lines = [headline(facts), *(f"alarm: {line}" for line in facts["alarms"])]
    lines += facts["notes"] or ([] if facts["alarms"] else ["no alarm, no note"])
    lines += [f"see {page}" for page in facts["pages"]]
    return as_lines([*lines, *times_in_words(facts)]).split("\n")


def headline(facts: dict[str, Any]) -> str:
    """Return what was recorded, in one line."""
    ranks = plural(facts["world_size"], "rank")
    steps = plural(facts["num_steps"], "step")
    said = f"{facts['folder']}: {ranks}, {steps}, {facts['num_recorded']} recorded"
    if losses := facts["losses"]:
        first, last = losses[0], losses[-1]
        said += f"; loss {first['loss']:.4g} at step {first['step']}"
        said += f", {last['loss']:.4g} at step {last['step']}"
    if facts["missing_ranks"]:
        said += f"; {lacks(facts['missing_ranks'], facts['folder'])}"
    early: dict[str, list[int]] = {}
    for one in facts["unfinished"]:
        what = "killed, or at work," if one["killed"] else "ended early"
        what += f" after {plural(one['steps'], 'step')}"
        early.setdefault(what, []).append(one["rank"])
    ends = [f"no end of {in_ranks(ranks)}: {what}" for what, ranks in early.items()]
    return "; ".join([said, *ends])


def times_in_words(facts: dict[str, Any]) -> list[str]:
    """Return where the time goes: a table by rank, and the slowest rank."""
    if not facts["steps_timed"]:
        return [
            "no step was timed: the first four, and those that were recorded, are not"
        ]
    parts = facts["parts"]
    step = parts["all"]["step_ms"]
    each = f"a step takes {ms(step)} ({plural(facts['steps_timed'], 'step')} timed)"
    if facts["samples_per_s"]:
        each += f": {thousands(facts['samples_per_s'])} samples a second"
    return [each, *_table(parts), straggler(facts)]


def _table(parts: dict[str, dict[str, float]]) -> list[str]:
    ranks = [rank for rank in parts if rank != "all"][:SHOWN_RANKS]
    heads = ["share", *(f"rank {rank}" for rank in ranks)]
    lines = [f"{'ms':<32}" + "".join(f"{head:>9}" for head in heads)]
    for part, name in PARTS.items():
        if part in parts["all"]:
            share = percent(parts["all"][part] / max(parts["all"]["step_ms"], LEAST_MS))
            cells = [share, *(f"{parts[rank][part]:.1f}" for rank in ranks)]
            lines.append(f"  {name:<30}" + "".join(f"{cell:>9}" for cell in cells))
    return lines


def times_compared(found: "TimesCompared") -> str:
    """Return how the times of two recordings differ, in one line."""
    steps = f"a step takes {ms(found.a_ms)} in A, {ms(found.b_ms)} in B"
    if not found.one_host:
        steps += " (on different hosts)"
    if not found.differ:
        return f"time: no difference is seen: {steps}, noise {ms(found.noise_ms)}"
    longer = found.b_ms / max(found.a_ms, LEAST_MS) - 1
    most = [f"{PARTS[part]} {by:+.1f} ms" for part, by in found.parts.items()][:3]
    what = f"{percent(abs(longer))} {'longer' if longer > 0 else 'shorter'}"
    which = f": {', '.join(most)}" if most else ""
    return f"time: {steps}, {what}{which} (noise {ms(found.noise_ms)})"


def straggler(facts: dict[str, Any]) -> str:
    """Return the slowest rank, or that none is seen."""
    found = facts["stragglers"]
    if found["undecided"]:
        return f"slow rank: undecided: {found['undecided']}"
    if not found["slow"]:
        return (
            f"no rank is slow: one that needs {ms(found['visible_ms'])} more would show"
        )
    slow, part = found["slow"][0], PARTS[facts["late_part"]]
    line = (
        f"rank {slow['rank']} is {ms(slow['excess_ms'])} late in each step, in {part}"
    )
    if found["others_wait_ms"] is not None:
        line += f"; the others wait {ms(found['others_wait_ms'])}"
    return line
