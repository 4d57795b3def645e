"""Search for the first module whose output differs between two recordings."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, nan

from minitrain.compare.align import StepPair
from minitrain.compare.comparer import StepCompared
from minitrain.compare.step_causes import share_apart
from minitrain.recording.alarm import Row

Call = tuple[str, int]
Calls = dict[Call, Row]


@dataclass(frozen=True)
class ModulesCompared:
    """The first call of a module, in the order in which calls end, whose output differs
    at ``step``; ``module`` is empty if there is none.

    The call is the ``place``-th of all ``num`` calls and the ``call``-th of this
    module. ``share``: the distance of the outputs as a share of their size, infinity if
    one run has none. ``same_inputs``: equal within rounding (to the bit if ``share`` is
    within rounding), None if not comparable.
    """

    step: int
    num: int
    module: str = ""
    call: int = 0
    place: int = 0
    share: float = 0.0
    same_inputs: bool | None = True


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
    # without outputs that could not be read
    names = dict.fromkeys(call for ours, _ in calls for call in ours)
    found = {call: _apart(calls, call, "outputs") for call in names}
    shares = {call: share for call, share in found.items() if not isnan(share)}
    limit = place.limits.linear
    # without one beyond rounding, any bit counts
    limit = limit if max(shares.values(), default=0.0) > limit else 0.0
    first = next((c for c, share in shares.items() if share > limit), None)
    if first is None:
        return ModulesCompared(place.step, len(shares))
    inputs = _apart(calls, first, "inputs")
    return ModulesCompared(
        place.step,
        len(shares),
        *first,
        place=1 + [*shares].index(first),
        share=shares[first],
        same_inputs=None if isnan(inputs) else inputs <= limit,
    )


def _apart(calls: Sequence[tuple[Calls, Calls]], call: Call, kind: str) -> float:
    # the largest distance on a rank; NaN if it was read on none
    pairs = [[of.get(call, {}).get(kind) for of in both] for both in calls]
    read = [p for p in pairs if any(p) and all(of is None or of["hash"] for of in p)]
    shares = [share_apart(*pair) for pair in read]
    return max((share for share in shares if not isnan(share)), default=nan)


def _calls(row: Row) -> Calls:
    count: Counter[str] = Counter()
    found = {}
    for call in row.get("modules", ()):
        count[call["module"]] += 1
        found[call["module"], count[call["module"]]] = call
    return found
