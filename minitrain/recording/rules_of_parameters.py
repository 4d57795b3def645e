"""Rules on parameters: equal on all ranks after a step, and at the end."""

from collections.abc import Sequence
from math import dist, hypot, inf, isfinite

from minitrain.recording.alarm import Alarm, Rows, alarms, first_unlike, hashes
from minitrain.recording.causes import of_unlike_parameters

# of the model: more than gradients that are apart by rounding may come to unsaid
FAR = 1e-4


def parameters(
    rows: Rows, before: Rows | None, by_rounding: bool = False
) -> list[Alarm]:
    """Parameters are equal on all ranks after the step, or near where gradients are
    apart ``by_rounding``: then they go on apart.
    """
    name, ranks = _unlike(rows)
    if not ranks:
        return []
    where = {"ranks": ranks, "tensor": name}
    was, far = before and _unlike(before)[1], apart(rows)
    if far > FAR and (by_rounding or was) and not apart(before or rows[:1]) > FAR:
        what = f"about {far:.1g} of the model apart"
        cause = "gradients apart by rounding, for long; or another fault beside it"
        return alarms(rows, "parameters", what, cause, **where)
    # else it was told then, or the gradients were
    if was or by_rounding:
        return []
    what, cause = of_unlike_parameters(rows, before, name)
    return alarms(rows, "parameters", what, cause, **where)


def _unlike(rows: Rows) -> tuple[str, list[int]]:
    return first_unlike([hashes(row, "parameters") for row in rows])


def apart(rows: Rows) -> float:
    """Return how far a rank's parameters are from those of the first, by their
    sketches, as a share of their size; infinity if they are not finite on one alone.
    """
    first = rows[0]["parameters"]
    found = 0.0
    for row in rows[1:]:
        names = [name for name in first if name in row["parameters"]]
        pairs = [(first[name], row["parameters"][name]) for name in names]
        unlike_ones = [(a, b) for a, b in pairs if a["hash"] != b["hash"]]
        gap = hypot(*(dist(a["sketch"], b["sketch"]) for a, b in unlike_ones))
        size = hypot(*(a["norm"] for a, _ in pairs))
        if gap:
            found = max(found, gap / size if isfinite(gap) and size else inf)
    return found


def parted_at_the_end(ends: Rows, before: Sequence[Rows], last: int) -> list[Alarm]:
    """Parameters are equal on all ranks after the last step, if all have an end."""
    if not all("parameters" in end for end in ends):
        return []
    name, ranks = _unlike(ends)
    far = apart(ends)
    parted = any(_unlike(rows)[1] for rows in before)
    # else it was told then, or gradients are apart by rounding
    told = parted and (far <= FAR or any(apart(rows) > FAR for rows in before))
    if not ranks or told:
        return []
    what = f"unlike those of the others at the end, about {far:.1g} of the model apart"
    cause = "a step after the last recorded one: every=1 finds it and its cause"
    where = {"ranks": ranks, "tensor": name}
    return alarms([{"step": last}], "parameters", what, cause, **where)


def also(rows: Rows, before: Rows | None = None, last: int = 0) -> list[Alarm]:
    """Modules beside the model are equal on all ranks that record them."""
    have = [rank for rank, row in enumerate(rows) if "also" in row]
    name, found = first_unlike([rows[rank]["also"] for rank in have])
    if not found:
        return []
    what = "unlike those of the others, beside the model"
    cause = "made, loaded or updated in another way on ranks, or on one alone"
    where = {"ranks": [have[number] for number in found], "tensor": name}
    return alarms([{"step": last} | {**rows[0]}], "also", what, cause, **where)
