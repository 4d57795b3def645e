"""The comparison of two recordings, as facts for JSON and as lines of text."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minitrain.cli.command import Answer
from minitrain.core.printable import as_lines
from minitrain.report.numbers import ms, percent, plural

if TYPE_CHECKING:
    from minitrain.compare.comparer import StepCompared
    from minitrain.compare.difference import Difference
    from minitrain.compare.distances import Distance
    from minitrain.compare.recordings import RecordingsCompared
    from minitrain.recording.times import TimesCompared

# result symbols of a step, the worst last
MARKS = {"=": "equal bits", "~": "within rounding", "?": "undecided", "x": "different"}
STRIP_WIDTH = 60
# largest number of names in a line
SHOWN = 5
KINDS = ("gradients", "parameters")
# the smallest time that a file of times can hold: a step may take 0 ms
LEAST_MS = 1e-4
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


def compared(
    a: Path, b: Path, twin: Path | None = None, start: int | None = None
) -> Answer:
    """Compare two recordings; ``ok`` if they are the same computation. Times are
    reported but do not affect the verdict. ``twin`` is a recording of A from weights
    one rounding unit away (MINITRAIN_TWIN=1), which shows how rounding grows; ``start``
    the step of A at which B starts.
    """
    from minitrain.compare.recordings import compare_recordings
    from minitrain.recording.times import compare_times, read_times

    found = compare_recordings(a, b, twin, start)
    both = read_times(a), read_times(b)
    # the spread of fewer steps is not their noise
    is_enough = all(one is not None and one.num_timed >= 3 for one in both)
    times = compare_times(*both) if is_enough else None
    page = page_on(None if found.same else found.first)
    facts = recordings_as_facts(found)
    facts |= {"page": page, "times": times and asdict(times)}
    lines = [recordings_in_words(found), *([f"see {page}"] if page else [])]
    lines += [times_compared(times)] if times else []
    return Answer(found.same, facts, "\n".join(lines))


def page_on(first: "Difference | None") -> str | None:
    """Return the page of docs/ on the cause of a Difference; None if there is none."""
    from minitrain.compare.difference import PAGES

    return PAGES.get(first.why.cause) if first else None


def recordings_in_words(found: "RecordingsCompared") -> str:
    """Return lines: alarms, the verdict, then where and why recordings differ."""
    verdict = _verdict(found)
    lines = [f"alarm {line}" for line in _within(found.severe)] + [verdict]
    if doubt := found.doubt:
        start = "from" if doubt.onwards else "at"
        lines.append(f"first exceeds the quick limits {start} {doubt.where}")
    lines += _modules(found)
    lines += found.broken
    lines += [line for line in found.unseen if line not in verdict]
    lines += only_in_words(found.only_in_a, found.only_in_b)
    lines.append(strip(found.steps))
    severe = found.severe
    notes = {x: [n for n in of if n not in severe[x]] for x, of in found.alarms.items()}
    lines += _within(notes)
    of = found.resumed
    resumed = [f"{of.side} resumes {of.other} at step {of.step}"] if of else []
    lines += [f"expected difference: {line}" for line in (*resumed, *found.asides)]
    if found.verdict == "undecided" and found.first and found.first.twin_decides:
        lines.append(
            "to decide, record A with MINITRAIN_TWIN=1 into another folder and pass it "
            "as --twin FOLDER"
        )
    return as_lines(lines)


def _within(findings: dict[str, list[str]]) -> list[str]:
    # label the findings of the recorder's rules with the recordings that have them
    both = [line for line in findings["A"] if line in findings["B"]]
    lines = [f"within A and B: {line}" for line in both]
    for side, of in findings.items():
        lines += [f"within {side}: {line}" for line in of if line not in both]
    return lines


def _verdict(found: "RecordingsCompared") -> str:
    more = " and the end" if any(step.end for step in found.steps) else ""
    steps = plural(sum(not step.end for step in found.steps), "recorded step") + more
    if first := found.first:
        return f"{found.verdict} {'from' if first.onwards else 'at'} {first}"
    if found.agree:
        of = found.resumed
        start = f", from step {of.step} of {of.other}" if of else ""
        return f"{found.verdict}{start}: {steps}{_farthest(found)}"
    what = "not whole" if found.broken else "; ".join(found.unseen)
    if found.verdict == "different":
        what = "what only one of them has"
    equal = all(step.mark == "=" for step in found.steps)
    alike = "equal to the bit" if equal else "within rounding"
    alike = "undecided" if found.doubt else alike
    return f"{found.verdict}: {what}; {alike} is what both have ({steps})"


def _modules(found: "RecordingsCompared") -> list[str]:
    one = found.modules
    if one is None or (not one.module and found.agree):
        return []
    if not one.module:
        calls = plural(one.num, "call of a module", "calls of modules")
        where = f"the outputs of {calls} agree at step {one.step}"
        return [f"{where}: the difference comes after these, or between them"]
    times = f", call {one.call} of it" if one.call > 1 else ""
    much = f"about {one.share:.2g} of its size apart"
    much = "not in both, or not finite" if math.isinf(one.share) else much
    line = f"first module whose output differs at step {one.step}: {one.module}{times}"
    line += f" ({one.place} of {one.num} in order of execution): {much}; its inputs "
    inputs = {True: "agree", False: "differ already", None: "cannot be compared"}
    return [line + inputs[one.same_inputs]]


def _farthest(found: "RecordingsCompared") -> str:
    clauses = []
    for kind in KINDS:
        pairs: list[tuple[Distance, int]] = [
            (getattr(step, kind), step.step) for step in found.steps
        ]
        most, step = max(pairs, key=lambda pair: pair[0].share)
        if most.gap and found.verdict != "equal bits":
            limit = f"allowed {most.allowed_share:.1g}, step {step}"
            clauses.append(f"{kind} at most {most.share:.1g} apart ({limit})")
    return f"; {', '.join(clauses)}" if clauses else ""


def strip(steps: Sequence["StepCompared"]) -> str:
    """Return a line with a result symbol (= ~ ? x) per recorded step, and a legend. For
    more than 60 steps, a symbol is the worst result of several consecutive steps.
    """
    each = -(-len(steps) // STRIP_WIDTH)
    groups = [steps[start : start + each] for start in range(0, len(steps), each)]
    worst = "".join(MARKS)
    marks = [max((step.mark for step in g), key=worst.index) for g in groups]
    legend = ", ".join(f"{m} {text}" for m, text in MARKS.items() if m in marks)
    recorded = [step.step for step in steps if not step.end]
    span = f"steps {recorded[0]} to {recorded[-1]}"
    if len(recorded) < len(steps):
        span += " and the end"
    several = f", {each} recorded steps a mark" if each > 1 else ""
    return f"{span}: {''.join(marks)}  ({legend}{several})"


def recordings_as_facts(found: "RecordingsCompared") -> dict[str, Any]:
    """Return the comparison as a dictionary for JSON."""
    of = found.resumed
    steps = [
        {
            "optimizer": step.optimizer,
            "step": step.step,
            "mark": step.mark,
            "end": step.end,
            **{kind: _measured(getattr(step, kind)) for kind in KINDS},
        }
        for step in found.steps
    ]
    copied = ("same", "verdict", "twin", "only_in_a", "only_in_b", "broken", "unseen")
    return {
        "equal": found.verdict == "equal bits",
        **{name: getattr(found, name) for name in (*copied, "alarms", "severe")},
        "first": found.first and found.first.facts(),
        "doubt": found.doubt and found.doubt.facts(),
        "resumed": of and {"side": of.side, "step": of.step},
        "steps": steps,
        "no_difference": found.asides,
        "modules": found.modules and asdict(found.modules),
    }


def _measured(found: "Distance") -> dict[str, Any]:
    facts = {name: getattr(found, name) for name in ("equal", "within", "tensor")}
    return facts | {"share": found.share, "allowed": found.allowed_share}


def times_compared(found: "TimesCompared") -> str:
    """Return a line: the step times of two recordings, and what takes longer."""
    steps = f"a step takes {ms(found.a_ms)} in A, {ms(found.b_ms)} in B"
    if not found.one_host:
        steps += " (on different hosts)"
    if not found.differ:
        return f"time: no difference is seen: {steps}, noise {ms(found.noise_ms)}"
    ratio = found.b_ms / max(found.a_ms, LEAST_MS)
    most = [f"{PARTS[part]} {by:+.1f} ms" for part, by in found.parts.items()][:3]
    what = f"{percent(abs(ratio - 1))} {'longer' if ratio > 1 else 'shorter'}"
    what = f"{ratio:.1f} times as long" if ratio > 2 else what
    which = f": {', '.join(most)}" if most else ""
    return f"time: {steps}, {what}{which} (noise {ms(found.noise_ms)})"


def only_in_words(only_in_a: Sequence[str], only_in_b: Sequence[str]) -> list[str]:
    """Return a line for each side (A, B) with names that the other does not have."""
    sides = (("A", only_in_a), ("B", only_in_b))
    return [f"only in {side}: {some(names)}" for side, names in sides if names]


def some(names: Sequence[str]) -> str:
    """Return the first five names in a line, and how many more there are."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
