"""Search for the first module whose output differs between two recordings."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, nan

from minitrain.compare.align import StepPair
from minitrain.compare.comparer import StepCompared
from minitrain.compare.step_causes import share_apart
from minitrain.recording.alarm import Row, hashes

Call = tuple[str, int]
Calls = dict[Call, Row]


@dataclass(frozen=True)
class ModulesCompared:
    """The first call of a module, in the order in which calls end, whose output differs
    at ``step``; ``module`` is empty if there is none.

    The call is the ``place``-th of all ``num`` calls and the ``call``-th of this
    module. ``share``: the distance of the outputs as a share of their size, infinity if
    one run has none. ``same_inputs``: equal within rounding (to the bit if ``share`` is
    within rounding), None if not comparable; ``same_weights``: equal bits. ``within``:
    the innermost enclosing module with the same inputs, or "". ``ranks``: the ranks
    that differ, empty for all.
    """

    step: int
    num: int
    module: str = ""
    call: int = 0
    place: int = 0
    share: float = 0.0
    same_inputs: bool | None = True
    same_weights: bool = True
    within: str = ""
    ranks: tuple[int, ...] = ()


def compare_modules(
    places: Sequence[StepPair], steps: Sequence[StepCompared]
) -> ModulesCompared | None:
    """Return the first module whose output differs by more than rounding, or else in
    any bit, at ``places`` up to the first with the worst mark (x, else ?, else ~) in
    ``steps``; its ``module`` is empty if there is none. Return None if modules were not
    recorded, or samples or world sizes differ.
    """
    marks = [step.mark for step in steps]
    last = next((marks.index(m) for m in "x?~" if m in marks), len(marks))
    found = [_compare(one) for one in places[: last + 1] if not one.end]
    unlike = [one for one in found if one and one.module]
    beyond = [one for one in unlike if one.share > places[0].limits.linear]
    return next(iter(beyond or unlike or found[-1:]), None)


def _compare(place: StepPair) -> ModulesCompared | None:
    rows = [(place.a[x], place.b[y]) for x, y in place.pairs]
    calls = [(_calls(a), _calls(b)) for a, b in rows]
    same = place.same_size and all(a["inputs"] == b["inputs"] for a, b in rows)
    if not (same and all(a and b for a, b in calls)):
        return None
    # shares by pair of ranks, without outputs that could not be read
    apart: dict[Call, dict[int, float]] = {}
    for pair, both in enumerate(calls):
        for call in both[0]:
            share = _apart(*both, call, "outputs")
            if not isnan(share):
                apart.setdefault(call, {})[pair] = share
    shares = {call: max(of.values()) for call, of in apart.items()}
    limit = place.limits.linear
    # without one beyond rounding, any bit counts
    limit = limit if max(shares.values(), default=0.0) > limit else 0.0
    first = next((c for c, share in shares.items() if share > limit), None)
    if first is None:
        return ModulesCompared(place.step, len(shares))
    unlike = [pair for pair, share in apart[first].items() if share > limit]
    both, (a, b) = calls[unlike[0]], rows[unlike[0]]
    inputs = {c: _apart(*both, c, "inputs") for c in both[0]}
    same_inputs = [c for c, far in inputs.items() if far <= limit]
    # calls around it end after it, the innermost first
    around = (name for name, _ in same_inputs if first[0].startswith(f"{name}."))
    return ModulesCompared(
        place.step,
        len(shares),
        *first,
        place=1 + [*shares].index(first),
        share=shares[first],
        same_inputs=None if isnan(inputs[first]) else first in same_inputs,
        same_weights=_weights(a, first[0]) == _weights(b, first[0]),
        within=next(around, ""),
        ranks=place.named([place.pairs[n] for n in unlike]).get("ranks", ()),
    )


def _apart(ours: Calls, theirs: Calls, call: Call, kind: str) -> float:
    both = ours[call][kind], theirs.get(call, {}).get(kind)
    return nan if any(of and not of["hash"] for of in both) else share_apart(*both)


def _calls(row: Row) -> Calls:
    count: Counter[str] = Counter()
    found = {}
    for call in row.get("modules", ()):
        count[call["module"]] += 1
        found[call["module"], count[call["module"]]] = call
    return found


def _weights(row: Row, module: str) -> dict[str, str]:
    # hashes of parameters and buffers before the step
    held = {**row["before"], **hashes(row, "buffers")}
    return {name: one for name, one in held.items() if name.startswith(f"{module}.")}
