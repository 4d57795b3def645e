"""Rules on parameters, buffers and other modules: equal on ranks, held, and moving."""

from collections.abc import Iterable, Sequence
from math import dist, hypot, inf, isfinite

from minitrain.recording.alarm import (
    Alarm,
    Row,
    Rows,
    against,
    alarm,
    first_unlike,
    hashes,
    note,
    unlike,
)

NOT_BROADCAST = "rank 0's weights are not broadcast, or were changed after that"
# distance, as a share of the model, from which rounding is an alarm
FAR = 1e-4
# a step of this length, as a share of the parameter, may be lost in float32
ROUNDED = 1e-6


def at_start(headers: Rows) -> list[Alarm]:
    """Return an alarm if models, or their initial weights, differ between ranks."""
    models = [{n: str(v) for n, v in one["parameters"].items()} for one in headers]
    name, ranks = first_unlike(models)
    if ranks:
        what = against([one.get(name, "not there") for one in models], ranks)
        cause = "ranks build different models: other settings, or other code"
        return [Alarm("model", 0, what, cause, ranks, name)]
    name, ranks = first_unlike([one["start"] for one in headers])
    what = "differ from the other ranks before the first step"
    return [Alarm("parameters", 0, what, NOT_BROADCAST, ranks, name)] if ranks else []


def parameters(rows: Rows, before: Rows | None, by_rounding: bool) -> Iterable[Alarm]:
    """Yield an alarm if parameters differ between ranks after the step; if they did
    ``before``, or gradients differ ``by_rounding``, only once beyond :data:`FAR`.
    """
    name, ranks = _unlike(rows)
    if not ranks:
        return
    is_known = by_rounding or (before is not None and bool(_unlike(before)[1]))
    if not is_known:
        what, cause = _since(rows, before, name)
    elif apart(rows) > FAR and (before is None or apart(before) <= FAR):
        what = f"about {apart(rows):.1g} of the model apart"
        cause = "gradients apart by rounding, for long; or another fault as well"
    else:
        return
    yield alarm(rows, "parameters", what, cause, ranks=ranks, tensor=name)


def _unlike(rows: Rows) -> tuple[str, list[int]]:
    return first_unlike([hashes(row, "parameters") for row in rows])


def apart(rows: Rows) -> float:
    """Return the largest distance of a rank's parameters from rank 0's, as a share of
    the norm of rank 0's, estimated from sketches; infinity if one is not finite.
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
    # return since when parameters differ, and why, if gradients are not the cause
    since = "differ from the other ranks since"
    if first_unlike([row["before"] for row in rows])[1]:
        if before is None:
            return "differ from the other ranks before the step", NOT_BROADCAST
        last = before[0]["step"]
        if last + 1 == rows[0]["step"]:
            cause = "changed between two steps, and not by this optimizer"
            return f"{since} step {last} was done", cause
        cause = "steps between that were not recorded: every=1 finds the step and its "
        return f"{since} a step after {last}", f"{cause}cause"
    if unlike([hashes(row, "gradients").get(name) for row in rows]):
        cause = "the optimizer averages, or shares, other tensors and not this one"
        return f"{since} this step", cause
    cause = "the optimizer, or its state, is another one: restored on some ranks only?"
    return f"{since} this step, whose gradients are the same", cause


def parted_at_the_end(ends: Rows, before: Sequence[Rows]) -> Iterable[Alarm]:
    """Yield an alarm if the final parameters of ranks differ, unless this was reported
    for ``before``, the rows of the last recorded step of each optimizer.
    """
    if not all("parameters" in end for end in ends):
        return
    (name, ranks), far = _unlike(ends), apart(ends)
    parted = any(_unlike(rows)[1] for rows in before)
    # ranks that had parted were reported, or their gradients differ by rounding
    explained = parted and (far <= FAR or any(apart(rows) > FAR for rows in before))
    if ranks and not explained:
        what = "differ from the other ranks at the end, about "
        what += f"{far:.1g} of the model apart"
        cause = "a step after the last recorded one: every=1 finds it and its cause"
        yield alarm(ends, "parameters", what, cause, ranks=ranks, tensor=name)


def buffers(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    """Check that buffers are equal on all ranks as the first forward pass of the step
    begins. If not, yields an alarm if a wrapper such as DDP broadcasts them, or a note.
    """
    name, ranks = first_unlike([hashes(row, "buffers") for row in rows])
    if ranks:
        what = "differ from the other ranks as the forward pass begins"
        cause = "no wrapper broadcasts them: each rank keeps its own"
        severe = all(row["broadcast_buffers"] for row in rows)
        if severe:
            cause = "rank 0's buffers are not broadcast before the forward pass"
        where = {"ranks": ranks, "tensor": name, "severe": severe}
        yield alarm(rows, "buffers", what, cause, **where)


def also(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    """Yield an alarm if modules recorded as ``also`` differ between ranks."""
    have = [rank for rank, row in enumerate(rows) if "also" in row]
    name, found = first_unlike([rows[rank]["also"] for rank in have])
    if found:
        what = "differ from the other ranks, outside the model"
        cause = "made, loaded or updated in another way on ranks, or on one alone"
        ranks = [have[number] for number in found]
        yield alarm(rows, "also", what, cause, ranks=ranks, tensor=name)


def unmoved(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    """Yield a note if a parameter that should move stays, at two recorded steps."""
    stayed = _stay(before[0]) if before else []
    if names := [name for name in _stay(rows[0]) if name in stayed]:
        what = f"has a gradient and does not change, again ({len(names)} such tensors)"
        cause = "the optimizer holds another tensor, or its step is undone or too small"
        yield note(rows, "unmoved", what, cause, tensor=names[0])


def _stay(row: Row) -> list[str]:
    # a step of Adam is as long as the rate, one of SGD as rate times gradient
    rate = min(row["lr"], default=0.0)
    return [
        name
        for name, value in row["parameters"].items()
        if rate > ROUNDED
        and value["hash"] == row["before"].get(name)
        and name in row["gradients"]
        and rate * row["gradients"][name]["norm"] > ROUNDED * value["norm"]
    ]


def not_held(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    """Check that every trained parameter is in an optimizer. Yields a note; an alarm if
    the optimizer has no parameter of the model, and none changed since the step before.
    Float32 copies (master weights), copied back after a step, would change them.
    """
    names, groups = rows[0]["not_held"], [one for row in rows for one in row["groups"]]
    if names:
        what = f"in no optimizer ({len(names)} such tensors)"
        cause = "not given to it, or made, or replaced, after it"
        holds_none = bool(groups) and not any(group["parameters"] for group in groups)
        was = hashes(before[0], "parameters") if before else {}
        now = rows[0]["before"]
        rates = before[0]["lr"] if before else []
        # a warmup from 0 moves no copy either
        moves = any(rates) or not rates
        severe = holds_none and bool(now) and moves and now.items() <= was.items()
        if holds_none:
            what = f"the optimizer holds no parameter of the model ({len(names)})"
            cause = "copies of them are trained, as master weights are"
        if severe:
            cause = "made before the model was copied or moved, or for another model"
        where = {"tensor": names[0], "severe": severe}
        yield alarm(rows, "not held", what, cause, **where)
