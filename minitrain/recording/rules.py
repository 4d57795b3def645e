"""Rules between the ranks of a data-parallel run, checked on their rows.

Pure functions: a row is a line of a recording, and rows are those of the same step of
all ranks, in rank order. A fault is told once, at its root: where gradients differ,
the parameters that follow are not reported.
"""

from collections.abc import Callable, Sequence
from math import dist, hypot, inf, isfinite

from minitrain.recording.alarm import (
    Alarm,
    Row,
    Rows,
    alarm,
    alarms,
    first_unlike,
    hashes,
    notes,
    pair_of,
    unlike,
)
from minitrain.recording.causes import not_broadcast, of_unlike_parameters
from minitrain.recording.rules_of_gradients import gradients, no_gradient, own_gradients
from minitrain.recording.rules_of_inputs import (
    again,
    random_numbers,
    same_samples,
    shared_generators,
    unread,
)
from minitrain.recording.rules_of_progress import (
    carried,
    evaluation_mode,
    forward_passes,
    learning_rates,
    not_finite,
    not_held,
    settings,
    synchronized_often,
    touched,
    unmoved,
    wrappers,
)

# of a recording's first line: what is to be the same on all ranks
SAME = ("version", "world_size", "every", "twin", "torch", "threads")
# passes of a run that need not be a training: to try a model, or to profile it
MOST_OF_A_TRIAL = 3
# what takes parameters apart where it is unlike
LEADS = {"gradients", "learning rates", "optimizer settings"}
# of the model: more than gradients that are apart by rounding may come to unsaid
FAR = 1e-4

Rule = Callable[[Rows, Rows | None], list[Alarm]]


def alarms_of(rows: Rows, before: Rows | None) -> list[Alarm]:
    """Return the findings at one step; ``before`` are the rows of the recorded step
    before it, None at the first.
    """
    places = [(row["kind"], row.get("optimizer"), row.get("step")) for row in rows]
    if ranks := unlike(places):
        what = "at {}, while the others are at {}".format(
            *map(place, pair_of(rows, ranks))
        )
        step = max(int(one.get("step", 0)) for one in rows)
        cause = "unlike numbers of batches, or of steps, on ranks"
        return [alarm("steps", step, what, cause, ranks=ranks)]
    found = [one for rule in RULES for one in rule(rows, before)]
    # parameters follow from those
    if not any(one.rule in LEADS and one.ranks and one.severe for one in found):
        noted = any(one.rule == "gradients" for one in found)
        found += parameters(rows, before, by_rounding=noted)
    return found


def place(row: Row) -> str:
    """Return where the rank is that sent this row."""
    if row["kind"] != "step":
        return {"recording": "the start", "end": "the end"}.get(row["kind"], "?")
    optimizer = row.get("optimizer", 0)
    return f"step {row['step']}" + (f" of optimizer {optimizer}" if optimizer else "")


def alarms_at_start(headers: Rows) -> list[Alarm]:
    """Return differences of models, start weights, or settings of the recording."""
    found = []
    tables = [{n: str(v) for n, v in one["parameters"].items()} for one in headers]
    name, ranks = first_unlike(tables)
    if ranks:
        pair = (one.get(name, "not there") for one in pair_of(tables, ranks))
        what = "{}, but elsewhere {}".format(*pair)
        cause = "ranks make unlike models: other settings, or other code"
        found.append(alarm("model", 0, what, cause, ranks=ranks, tensor=name))
    else:
        name, ranks = first_unlike([one.get("start", {}) for one in headers])
        if ranks:
            what = "unlike those of the others before the first step"
            cause = not_broadcast(0)
            found.append(alarm("parameters", 0, what, cause, ranks=ranks, tensor=name))
    tables = [{n: str(one.get(n)) for n in SAME} for one in headers]
    name, ranks = first_unlike(tables)
    if ranks:
        pair = (one[name] for one in pair_of(tables, ranks))
        what = "{} = {}, but elsewhere {}".format(name, *pair)
        severe = name not in ("torch", "threads")
        found.append(alarm("settings", 0, what, ranks=ranks, severe=severe))
    return found


def alarms_at_end(
    ends: Sequence[Row | None], before: Sequence[Rows] = (), start: Rows = ()
) -> list[Alarm]:
    """Return unlike numbers of steps, recordings without an end (None), and parameters
    that parted after the last recorded step; ``before`` are the rows of that, for each
    optimizer, and ``start`` the first lines. A note where none saw a step, or a pass,
    and has the other.
    """
    left = [rank for rank, end in enumerate(ends) if end is None]
    whole = [end for end in ends if end is not None]
    counts = [sum(end["steps"].values()) for end in whole]
    last = max(counts, default=0)
    if left:
        what = "the recording has no end: killed, or still running"
        return [alarm("steps", last, what, ranks=left)]
    if ranks := unlike([tuple(sorted(end["steps"].items())) for end in whole]):
        what = "{} steps, but elsewhere {}".format(*pair_of(counts, ranks))
        cause = "unlike numbers of batches on ranks"
        return [alarm("steps", last, what, cause, ranks=ranks)]
    passes = max((end["forwards"] for end in whole), default=0)
    unseen = _unseen(passes, last, whole, start)
    found = evaluation_mode(whole) + also(whole, last=last) + unseen
    return found + parted_at_the_end(whole, before, last)


def _unseen(passes: int, steps: int, ends: Rows, start: Rows) -> list[Alarm]:
    # all that a recorder can be blind to looks as if it were not done
    if bool(passes) == bool(steps):
        return []
    if steps:
        what = f"{steps} steps and no forward pass of the training"
        cause = "the model is in eval(), or not called itself: data is not recorded"
        return [alarm("steps", steps, what, cause, severe=False)]
    what, cause = f"{passes} passes and no step", "no optimizer of the model makes them"
    pairs = zip(ends, start, strict=False)
    still = all(hashes(end, "parameters") == first["start"] for end, first in pairs)
    severe = bool(start) and still and passes > MOST_OF_A_TRIAL
    if severe:
        what += ", and no parameter has changed"
        cause = "no optimizer holds parameters of the model: made for a copy of it?"
    return [alarm("steps", steps, what, cause, severe=severe)]


def buffers(rows: Rows, before: Rows | None) -> list[Alarm]:
    """Buffers are equal on all ranks as the first forward pass of the step begins; a
    note if no wrapper is there to make them so.
    """
    name, ranks = first_unlike([hashes(row, "buffers") for row in rows])
    if not ranks:
        return []
    what = "unlike those of the others as the forward pass begins"
    where = {"ranks": ranks, "tensor": name}
    if all(row["broadcast_buffers"] for row in rows):
        cause = "rank 0's buffers are not broadcast before the forward pass"
        return alarms(rows, "buffers", what, cause, **where)
    cause = "no wrapper broadcasts them: each rank keeps its own, which may be meant"
    return notes(rows, "buffers", what, cause, **where)


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


RULES: tuple[Rule, ...] = (
    evaluation_mode,
    unread,
    same_samples,
    again,
    forward_passes,
    learning_rates,
    settings,
    buffers,
    wrappers,
    gradients,
    own_gradients,
    carried,
    touched,
    no_gradient,
    not_finite,
    unmoved,
    not_held,
    synchronized_often,
    random_numbers,
    shared_generators,
    also,
)
