"""The first module whose output differs between two recordings."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from minitrain.compare.align import Pair, StepPair
from minitrain.compare.comparer import StepCompared
from minitrain.compare.inputs_and_state import share_apart
from minitrain.recording.alarm import Row, hashes

Calls = dict[tuple[str, int], Row]


@dataclass(frozen=True)
class ModulesCompared:
    """The first call of a module, in the order in which calls end, whose output differs
    at ``step``; an empty ``module`` where none does.

    It is the ``place``-th of ``num`` calls, and the ``call``-th of this module. Output
    and inputs are ``share`` and ``inputs_share`` of their sizes apart, infinity where
    one run has none; 0 for equal bits. ``within`` is the innermost module around it
    with equal inputs, or "". ``ranks`` are those that differ, empty for all.
    """

    step: int
    num: int
    module: str = ""
    call: int = 0
    place: int = 0
    share: float = 0.0
    inputs_share: float = 0.0
    same_weights: bool = True
    within: str = ""
    ranks: tuple[int, ...] = ()


def compare_modules(
    places: Sequence[StepPair], steps: Sequence[StepCompared]
) -> ModulesCompared | None:
    """Return the first module that differs by more than rounding, up to the first step
    that is different; without one, the first that differs in any bit. None if modules
    were not recorded, or for other samples.
    """
    marks = [step.mark for step in steps]
    worst = max(marks, key="=~?x".index)
    last = marks.index(worst) if worst != "=" else len(marks)
    compared = [_compare(one) for one in places[: last + 1] if not one.end]
    found = [one for one in compared if one]
    unlike = [one for one in found if one.module]
    limit = places[0].limits.linear
    beyond = (one for one in unlike if one.share > limit)
    return next(beyond, (unlike or found[-1:] or [None])[0])


def _compare(place: StepPair) -> ModulesCompared | None:
    rows = {(x, y): (place.a[x], place.b[y]) for x, y in place.pairs}
    calls = {pair: (_calls(a), _calls(b)) for pair, (a, b) in rows.items()}
    same = all(a["inputs"] == b["inputs"] for a, b in rows.values())
    if not (place.same_size and same and all(a and b for a, b in calls.values())):
        return None
    num = max(len(ours) for ours, _ in calls.values())
    found: dict[int, dict[Pair, ModulesCompared]] = {}
    for pair, (ours, theirs) in calls.items():
        for at, (call, mine) in enumerate(ours.items(), start=1):
            other = theirs.get(call, {})
            share, inputs = (
                share_apart(mine[kind], other.get(kind))
                for kind in ("outputs", "inputs")
            )
            if share:
                a, b = (_weights(row, call[0]) for row in rows[pair])
                one = ModulesCompared(place.step, num, *call, at, share, inputs, a == b)
                found.setdefault(at, {})[pair] = one
    limit = place.limits.linear
    beyond = [n for n in found if max(o.share for o in found[n].values()) > limit]
    if not found:
        return ModulesCompared(place.step, num)
    of = found[min(beyond or found)]
    first = max(of.values(), key=lambda one: one.share)
    around = _around(*calls[next(iter(of))], first)
    return replace(first, within=around, **place.named([*of]))


def _around(ours: Calls, theirs: Calls, first: ModulesCompared) -> str:
    # those around it end after it, the innermost first
    for (name, number), mine in [*ours.items()][first.place :]:
        if first.module.startswith(f"{name}."):
            other = theirs.get((name, number), {})
            if share_apart(mine["inputs"], other.get("inputs")) == 0:
                return name
    return ""


def _calls(row: Row) -> Calls:
    count: Counter[str] = Counter()
    found = {}
    for call in row.get("modules", ()):
        count[call["module"]] += 1
        found[call["module"], count[call["module"]]] = call
    return found


def _weights(row: Row, module: str) -> dict[str, str]:
    # and buffers, as the step begins
    held = {**row["before"], **hashes(row, "buffers")}
    return {name: one for name, one in held.items() if name.startswith(f"{module}.")}
