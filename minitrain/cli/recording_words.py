"""What is the same in two recordings, and what is not: the lines of ``verify``."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from minitrain.core.printable import as_lines
from minitrain.report.numbers import plural

if TYPE_CHECKING:
    from minitrain.compare.difference import Unlike
    from minitrain.compare.recordings import RecordingsCompared
    from minitrain.compare.step import StepCompared
    from minitrain.compare.tolerances import Measured

MARKS = {"=": "equal bits", "~": "within rounding", "?": "undecided", "x": "different"}
# the worst of those that share a place comes last
WORST = "=~?x"
SAME = ("equal bits", "same computation within rounding")
STRIP_WIDTH = 60
SHOWN = 5
KINDS = ("gradients", "parameters")


def recordings_in_words(found: "RecordingsCompared") -> str:
    """The verdict first, then where and why; a line each."""
    lines = [*_severe(found), _verdict(found)]
    if found.doubt:
        already = f"{at_or_from(found.doubt)} {where(found.doubt)}"
        lines.append(f"beyond the quick limits already {already}")
    lines += found.broken
    lines += [line for line in found.unseen if line not in _verdict(found)]
    for side, only in (("A", found.only_in_a), ("B", found.only_in_b)):
        if only:
            lines.append(f"only in {side}: {_some(only)}")
    lines.append(strip(found.steps))
    notes = {
        side: [line for line in lines if line not in found.severe[side]]
        for side, lines in found.alarms.items()
    }
    lines += _within(notes["A"], notes["B"])
    if found.twin and (far := _far(found)):
        lines.append(far)
    lines += [f"no difference by itself: {line}" for line in found.asides]
    if found.verdict == "undecided" and found.first and found.first.twin_decides:
        lines.append(
            "a twin tells: run A once more with MINITRAIN_TWIN=1 into another folder, "
            "then --twin FOLDER"
        )
    return as_lines(lines)


def _severe(found: "RecordingsCompared") -> list[str]:
    """The alarms of both; they come before the verdict."""
    lines = _within(found.severe["A"], found.severe["B"])
    return [f"alarm {line}" for line in lines]


def _within(of_a: Sequence[str], of_b: Sequence[str]) -> list[str]:
    """What the recorder's rules find in each recording."""
    both = [line for line in of_a if line in of_b]
    lines = [f"within A and B: {line}" for line in both]
    for side, said in (("A", of_a), ("B", of_b)):
        lines += [f"within {side}: {line}" for line in said if line not in both]
    return lines


def _far(found: "RecordingsCompared") -> str:
    """From where on a twin excuses much."""
    # torch takes seconds to import: not for --help
    from minitrain.compare.tolerances import HIDES

    for step in found.steps:
        for kind in KINDS:
            if getattr(step, kind).allowed_share > HIDES:
                what = f"rounding alone may take {kind} more than {HIDES:.0%} apart"
                return f"from step {step.step} on {what}: a small fault could hide"
    return ""


def _verdict(found: "RecordingsCompared") -> str:
    steps = number_of(found.steps)
    if found.first:
        return f"{found.verdict} {at_or_from(found.first)} {described(found.first)}"
    if found.verdict not in SAME:
        what = "not whole" if found.broken else "; ".join(found.unseen)
        if found.verdict == "different":
            what = "what only one of them has"
        return f"{found.verdict}: {what}; {_alike(found)} is what both have ({steps})"
    return f"{found.verdict}: {steps}{_farthest(found)}"


def _alike(found: "RecordingsCompared") -> str:
    equal = all(step.mark == "=" for step in found.steps)
    return "equal to the bit" if equal else "within rounding"


def _farthest(found: "RecordingsCompared") -> str:
    if found.verdict == "equal bits":
        return ""
    said = []
    for kind in ("gradients", "parameters"):
        pairs: list[tuple[StepCompared, Measured]] = [
            (step, getattr(step, kind)) for step in found.steps
        ]
        step, most = max(pairs, key=lambda pair: pair[1].share)
        if most.gap:
            limit = f"allowed {most.allowed_share:.1g}"
            said.append(
                f"{kind} at most {most.share:.1g} apart ({limit}, step {step.step})"
            )
    return f"; {', '.join(said)}" if said else ""


def at_or_from(one: "Unlike") -> str:
    """What stands before where it is."""
    return "from" if one.onwards else "at"


def where(one: "Unlike") -> str:
    """Step, thing, tensor and ranks."""
    text = "the start" if one.step < 0 else f"step {one.step}"
    if one.end:
        text = f"the end, after step {one.step}"
    if one.optimizer:
        text += f" of optimizer {one.optimizer}"
    if one.onwards:
        text += " on"
    text += f": {one.what}"
    if one.tensor:
        text += f", tensor {one.tensor}"
    return f"{text}, {one.ranks}" if one.ranks else text


def described(one: "Unlike") -> str:
    """The same, with by how much, since when, and why."""
    text = f"{where(one)}: {one.much}"
    if one.since is not None and one.since + 1 < one.step:
        text += f" (the recorded step before is {one.since})"
    return f"{text}; probable cause: {one.cause}"


def number_of(steps: Sequence["StepCompared"]) -> str:
    """How many were recorded, and whether more came after them."""
    more = " and the end" if any(step.end for step in steps) else ""
    return plural(sum(not step.end for step in steps), "recorded step") + more


def strip(steps: Sequence["StepCompared"]) -> str:
    """A mark for each recorded step; the worst of several where there are many."""
    each = -(-len(steps) // STRIP_WIDTH)
    parts = [steps[start : start + each] for start in range(0, len(steps), each)]
    marks = [max((s.mark for s in part), key=WORST.index) for part in parts]
    legend = ", ".join(f"{m} {MARKS[m]}" for m in WORST if m in marks)
    recorded = [step.step for step in steps if not step.end]
    span = f"steps {recorded[0]} to {recorded[-1]}"
    if len(recorded) < len(steps):
        span += " and the end"
    several = f", {each} recorded steps a mark" if each > 1 else ""
    return f"{span}: {''.join(marks)}  ({legend}{several})"


def recordings_as_facts(found: "RecordingsCompared") -> dict[str, Any]:
    """The same for programs."""
    return {
        "equal": found.verdict == "equal bits",
        "same": found.same,
        "verdict": found.verdict,
        "first": found.first and asdict(found.first),
        "doubt": found.doubt and asdict(found.doubt),
        "twin": found.twin,
        "steps": [
            {
                "optimizer": step.optimizer,
                "step": step.step,
                "mark": step.mark,
                "end": step.end,
                **{kind: _measured(getattr(step, kind)) for kind in KINDS},
            }
            for step in found.steps
        ],
        "only_in_a": found.only_in_a,
        "only_in_b": found.only_in_b,
        "broken": found.broken,
        "unseen": found.unseen,
        "no_difference": found.asides,
        "alarms": found.alarms,
        "severe": found.severe,
    }


def _measured(found: "Measured") -> dict[str, Any]:
    numbers = {"share": found.share, "allowed": found.allowed_share}
    # JSON has no infinity
    finite = {k: v if abs(v) < float("inf") else None for k, v in numbers.items()}
    return {
        "equal": found.equal,
        "within": found.within,
        "tensor": found.tensor,
    } | finite


def _some(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
