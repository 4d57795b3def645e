"""The lines of ``verify`` on two recordings."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from minitrain.core.printable import as_lines
from minitrain.recording.alarm import in_ranks
from minitrain.report.numbers import plural

if TYPE_CHECKING:
    from minitrain.compare.comparer import StepCompared
    from minitrain.compare.difference import Difference
    from minitrain.compare.distances import Distance
    from minitrain.compare.recordings import RecordingsCompared

MARKS = {"=": "equal bits", "~": "within rounding", "?": "undecided", "x": "different"}
# the worst of those that share a place comes last
WORST = "=~?x"
SAME = ("equal bits", "same computation within rounding")
STRIP_WIDTH = 60
SHOWN = 5
KINDS = ("gradients", "parameters")


def recordings_in_words(found: "RecordingsCompared") -> str:
    """The alarms and the verdict first, then where and why; a line each."""
    verdict = _verdict(found)
    lines = [f"alarm {line}" for line in _within(found.severe)] + [verdict]
    if found.doubt:
        lines.append(f"beyond the quick limits already {placed(found.doubt)}")
    lines += _modules(found)
    lines += found.broken
    lines += [line for line in found.unseen if line not in verdict]
    lines += only_in_words(found.only_in_a, found.only_in_b)
    lines.append(strip(found.steps))
    lines += _within(
        {
            side: [line for line in said if line not in found.severe[side]]
            for side, said in found.alarms.items()
        }
    )
    of = found.resumed
    resumed = [f"{of.side} resumes {of.other} at step {of.step}"] if of else []
    lines += [f"no difference by itself: {line}" for line in (*resumed, *found.asides)]
    if found.verdict == "undecided" and found.first and found.first.twin_decides:
        lines.append(
            "a twin tells: run A once more with MINITRAIN_TWIN=1 into another folder, "
            "then --twin FOLDER"
        )
    return as_lines(lines)


def _within(said: dict[str, list[str]]) -> list[str]:
    """Return what the recorder's rules find in each recording."""
    both = [line for line in said["A"] if line in said["B"]]
    lines = [f"within A and B: {line}" for line in both]
    for side, of in said.items():
        lines += [f"within {side}: {line}" for line in of if line not in both]
    return lines


def _verdict(found: "RecordingsCompared") -> str:
    steps = number_of(found.steps)
    if first := found.first:
        return f"{found.verdict} {'from' if first.onwards else 'at'} {first}"
    if found.verdict in SAME:
        of = found.resumed
        start = f", from step {of.step} of {of.other}" if of else ""
        return f"{found.verdict}{start}: {steps}{_farthest(found)}"
    what = "not whole" if found.broken else "; ".join(found.unseen)
    if found.verdict == "different":
        what = "what only one of them has"
    equal = all(step.mark == "=" for step in found.steps)
    alike = "equal to the bit" if equal else "within rounding"
    return f"{found.verdict}: {what}; {alike} is what both have ({steps})"


def _modules(found: "RecordingsCompared") -> list[str]:
    one = found.modules
    if one is None or (not one.module and found.verdict in SAME):
        return []
    if not one.module:
        calls = plural(one.num, "call of a module", "calls of modules")
        where = f"the outputs of {calls} agree at step {one.step}"
        return [f"{where}: the difference comes after these, or between them"]
    times = f", call {one.call} of it" if one.call > 1 else ""
    which = f", {in_ranks(one.ranks)}" if one.ranks else ""
    much = f"about {one.share:.2g} of its size apart"
    much = "not in both, or not finite" if math.isinf(one.share) else much
    line = f"first module whose output differs at step {one.step}{which}: {one.module}"
    line += f"{times} ({one.place} of {one.num} in order of execution): {much}"
    inputs = f"its inputs differ already: look at {one.within or 'the model'}"
    inputs = "its inputs agree" if one.same_inputs else inputs
    weights = "" if one.same_weights else ", its weights have other bits before"
    return [f"{line}; {inputs}{weights}"]


def _farthest(found: "RecordingsCompared") -> str:
    said = []
    for kind in KINDS:
        pairs: list[tuple[Distance, int]] = [
            (getattr(step, kind), step.step) for step in found.steps
        ]
        most, step = max(pairs, key=lambda pair: pair[0].share)
        if most.gap and found.verdict != "equal bits":
            limit = f"allowed {most.allowed_share:.1g}, step {step}"
            said.append(f"{kind} at most {most.share:.1g} apart ({limit})")
    return f"; {', '.join(said)}" if said else ""


def placed(one: "Difference") -> str:
    """Return the place of a difference: ``at step 3: gradients, tensor w``."""
    return f"{'from' if one.onwards else 'at'} {one.where}"


def number_of(steps: Sequence["StepCompared"]) -> str:
    """Return how many steps were recorded, and whether more came after them."""
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
    return {
        "equal": found.verdict == "equal bits",
        "same": found.same,
        "verdict": found.verdict,
        "first": found.first and found.first.facts(),
        "doubt": found.doubt and found.doubt.facts(),
        "twin": found.twin,
        "resumed": of and {"side": of.side, "step": of.step},
        "steps": steps,
        "only_in_a": found.only_in_a,
        "only_in_b": found.only_in_b,
        "broken": found.broken,
        "unseen": found.unseen,
        "no_difference": found.asides,
        "alarms": found.alarms,
        "severe": found.severe,
        "modules": found.modules and asdict(found.modules),
    }


def _measured(found: "Distance") -> dict[str, Any]:
    numbers = {"share": found.share, "allowed": found.allowed_share}
    facts = {name: getattr(found, name) for name in ("equal", "within", "tensor")}
    return facts | numbers


def only_in_words(only_in_a: Sequence[str], only_in_b: Sequence[str]) -> list[str]:
    """Return what one of the two alone has; a line for each that has more."""
    sides = (("A", only_in_a), ("B", only_in_b))
    return [f"only in {side}: {some(names)}" for side, names in sides if names]


def some(names: Sequence[str]) -> str:
    """The first of ``names``, and how many more there are."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
