"""Rules on parameters: the same on all ranks, before the first step and after each."""

from collections.abc import Iterable, Sequence
from math import dist, hypot, inf, isfinite

from minitrain.recording.alarm import (
    Alarm,
    Rows,
    alarm,
    all_names,
    first_unlike,
    hashes,
    in_ranks,
    unlike,
)

NOT_BROADCAST = "rank 0's weights are not broadcast, or were changed after that"
# distance, as a share of the model, from which rounding is an alarm
FAR = 1e-4


def parameters(
    rows: Rows, before: Rows | None, by_rounding: bool = False
) -> Iterable[Alarm]:
    """Parameters are equal on all ranks after the step; nearly so, if gradients differ
    ``by_rounding``.
    """
    name, ranks = _unlike(rows)
    if not ranks:
        return
    where = {"ranks": ranks, "tensor": name}
    was, far = before and _unlike(before)[1], apart(rows)
    if far > FAR and (by_rounding or was) and not apart(before or rows[:1]) > FAR:
        what = f"about {far:.1g} of the model apart"
        cause = "gradients apart by rounding, for long; or another fault as well"
        yield alarm(rows, "parameters", what, cause, **where)
    # not if they, or the gradients, were reported before
    elif not (was or by_rounding):
        what, cause = _since(rows, before, name)
        yield alarm(rows, "parameters", what, cause, **where)


def _unlike(rows: Rows) -> tuple[str, list[int]]:
    return first_unlike([hashes(row, "parameters") for row in rows])


def apart(rows: Rows) -> float:
    """Return the largest distance of a rank's parameters from rank 0's, by sketches, as
    a share of their size; infinity if they are not finite on one of the two.
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


def _since(rows: Rows, before: Rows | None, name: str) -> tuple[str, str]:
    # since when parameters differ, other than by the gradients, and why
    step, since = rows[0]["step"], "differ from the other ranks since"
    if first_unlike([row["before"] for row in rows])[1]:
        if before is None:
            return "differ from the other ranks before the step", NOT_BROADCAST
        last = before[0]["step"]
        if last + 1 == step:
            cause = "changed between two steps, and not by this optimizer"
            return f"{since} step {last} was done", cause
        cause = "steps between that were not recorded: every=1 finds the step and its "
        return f"{since} a step after {last}", f"{cause}cause"
    if unlike([hashes(row, "gradients").get(name) for row in rows]):
        cause = "the optimizer averages, or shares, other tensors and not this one"
        return f"{since} this step", cause
    # ranks may divide the state
    tables = [row["moments"] for row in before or ()]
    of_all = [n for n in all_names(tables) if all(n in table for table in tables)]
    _, ranks = first_unlike([{n: table[n] for n in of_all} for table in tables])
    who = f" of {in_ranks(ranks)}" if ranks else ""
    cause = f"the optimizer, or its state{who}, is another one: restored on some ranks "
    return f"{since} this step, whose gradients are the same", f"{cause}only?"


def parted_at_the_end(ends: Rows, before: Sequence[Rows]) -> Iterable[Alarm]:
    """Parameters are equal on all ranks at the end, unless it was reported before."""
    if not all("parameters" in end for end in ends):
        return
    name, ranks = _unlike(ends)
    far = apart(ends)
    parted = any(_unlike(rows)[1] for rows in before)
    # then it was reported, or gradients differ by rounding
    told = parted and (far <= FAR or any(apart(rows) > FAR for rows in before))
    if ranks and not told:
        what = "differ from the other ranks at the end, about "
        what += f"{far:.1g} of the model apart"
        cause = "a step after the last recorded one: every=1 finds it and its cause"
        yield alarm(ends, "parameters", what, cause, ranks=ranks, tensor=name)
