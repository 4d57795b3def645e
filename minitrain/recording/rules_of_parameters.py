"""That ranks hold the same parameters, after a step and at the end."""

from collections.abc import Sequence
from math import dist, hypot, inf, isfinite

from minitrain.recording.alarm import Alarm, Rows, alarm, first_unlike, hashes
from minitrain.recording.causes import of_unlike_parameters

# of the model: more than gradients that are apart by rounding may come to unsaid
FAR = 1e-4


def parameters(
    rows: Rows, before: Rows | None, by_rounding: bool = False
) -> list[Alarm]:
    """Equal on all ranks after the step, or near where gradients are apart
    ``by_rounding``: ranks that nothing brings together again go on apart.
    """
    name, ranks = first_unlike([hashes(row, "parameters") for row in rows])
    if not ranks:
        return []
    step, far = rows[0]["step"], apart(rows)
    was = first_unlike([hashes(row, "parameters") for row in before or rows[:1]])[1]
    if far > FAR and (by_rounding or was) and not apart(before or rows[:1]) > FAR:
        what = f"about {far:.1g} of the model apart"
        cause = "gradients apart by rounding, for long; or another fault beside it"
        return [alarm("parameters", step, what, ranks=ranks, tensor=name, cause=cause)]
    # else it was told then, or the gradients were
    if was or by_rounding:
        return []
    what, cause = of_unlike_parameters(rows, before, name)
    return [alarm("parameters", step, what, ranks=ranks, tensor=name, cause=cause)]


def apart(rows: Rows) -> float:
    """How far a rank's parameters are from those of the first, by their sketches, as a
    share of their size; infinitely where they are not finite on one alone.
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
    """Equal on all ranks after the last step, where all have an end that was seen."""
    if not all("parameters" in end for end in ends):
        return []
    name, ranks = first_unlike([hashes(end, "parameters") for end in ends])
    far = apart(ends)
    parted = any(
        first_unlike([hashes(row, "parameters") for row in rows])[1] for rows in before
    )
    # else it was told then, or gradients are apart by rounding
    told = parted and (far <= FAR or any(apart(rows) > FAR for rows in before))
    if not ranks or told:
        return []
    what = f"unlike those of the others at the end, about {far:.1g} of the model apart"
    cause = "a step after the last recorded one: every=1 finds it and its cause"
    return [alarm("parameters", last, what, ranks=ranks, tensor=name, cause=cause)]


def also(rows: Rows, before: Rows | None = None, last: int = 0) -> list[Alarm]:
    """Modules beside the model are equal on all ranks that record them."""
    have = [rank for rank, row in enumerate(rows) if "also" in row]
    name, found = first_unlike([rows[rank]["also"] for rank in have])
    if not found:
        return []
    ranks, step = [have[number] for number in found], rows[0].get("step", last)
    what = "unlike those of the others, beside the model"
    cause = "made, loaded or updated in another way on ranks, or on one alone"
    return [alarm("also", step, what, ranks=ranks, tensor=name, cause=cause)]
