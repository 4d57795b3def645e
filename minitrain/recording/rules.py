"""Rules between the ranks of a data-parallel run, checked on their rows.

Pure functions: a row is a line of a recording, and rows are those of the same step of
all ranks, in rank order. A fault is told once, at its root: where gradients differ,
the parameters that follow are not reported.
"""

from collections.abc import Callable, Iterable, Sequence
from math import dist, hypot, inf, isfinite

from minitrain.recording import rules_of_gradients as of_gradients
from minitrain.recording import rules_of_inputs as of_inputs
from minitrain.recording import rules_of_progress as of_progress
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
from minitrain.recording.causes import NOT_BROADCAST, of_unlike_parameters

# passes of a run that need not be a training: to try a model, or to profile it
MOST_OF_A_TRIAL = 3
# what takes parameters apart where it is unlike
LEADS = {"gradients", "learning rates", "optimizer settings"}
# of the model: more than gradients that are apart by rounding may come to unsaid
FAR = 1e-4


def alarms_of(rows: Rows, before: Rows | None) -> list[Alarm]:
    """Return the findings at one step; ``before`` are the rows of the recorded step
    before it, None at the first.
    """
    places = [place(row) for row in rows]
    if ranks := unlike(places):
        step = max(int(row.get("step", 0)) for row in rows)
        cause = "unlike numbers of batches, or of steps, on ranks"
        return [Alarm("steps", step, f"at {against(places, ranks)}", cause, ranks)]
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
    """Return differences of models, or of their start weights."""
    models = [{n: str(v) for n, v in one["parameters"].items()} for one in headers]
    name, ranks = first_unlike(models)
    if ranks:
        what = against([one.get(name, "not there") for one in models], ranks)
        cause = "ranks make unlike models: other settings, or other code"
        return [Alarm("model", 0, what, cause, ranks, name)]
    name, ranks = first_unlike([one["start"] for one in headers])
    what = "unlike those of the others before the first step"
    return [Alarm("parameters", 0, what, NOT_BROADCAST, ranks, name)] if ranks else []


def alarms_at_end(
    ends: Rows, before: Sequence[Rows] = (), start: Rows = ()
) -> Iterable[Alarm]:
    """Yield unlike numbers of steps, and what only the end shows; ``before`` are the
    rows of the last recorded step of each optimizer, and ``start`` the first lines.
    """
    counts = [sum(end["steps"].values()) for end in ends]
    ends = [{"step": max(counts)} | {**end} for end in ends]
    if ranks := unlike([tuple(sorted(end["steps"].items())) for end in ends]):
        what = against([f"{count} steps" for count in counts], ranks)
        cause = "unlike numbers of batches on ranks"
        yield alarm(ends, "steps", what, cause, ranks=ranks)
        return
    yield from of_progress.evaluation_mode(ends)
    yield from also(ends)
    yield from _unseen(ends, start)
    yield from _parted_at_the_end(ends, before)


def _unseen(ends: Rows, start: Rows) -> Iterable[Alarm]:
    # all that a recorder can be blind to looks as if it were not done
    steps, passes = ends[0]["step"], max(end["forwards"] for end in ends)
    if steps and not passes:
        what = f"{steps} steps and no forward pass of the training"
        cause = "the model is in eval(), or not called itself: data is not recorded"
        yield note(ends, "steps", what, cause)
    if passes and not steps:
        pairs = zip(ends, start, strict=False)
        still = all(hashes(end, "parameters") == first["start"] for end, first in pairs)
        severe = bool(start) and still and passes > MOST_OF_A_TRIAL
        what = f"{passes} passes and no step"
        what += ", and no parameter has changed" * severe
        cause = "no optimizer holds parameters of the model: made for a copy of it?"
        yield alarm(ends, "steps", what, cause, severe=severe)


def buffers(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    """Buffers are equal on all ranks as the first forward pass of the step begins; a
    note if no wrapper is there to make them so.
    """
    name, ranks = first_unlike([hashes(row, "buffers") for row in rows])
    if ranks:
        what = "unlike those of the others as the forward pass begins"
        cause = "no wrapper broadcasts them: each rank keeps its own"
        severe = all(row["broadcast_buffers"] for row in rows)
        if severe:
            cause = "rank 0's buffers are not broadcast before the forward pass"
        where = {"ranks": ranks, "tensor": name, "severe": severe}
        yield alarm(rows, "buffers", what, cause, **where)


def parameters(
    rows: Rows, before: Rows | None, by_rounding: bool = False
) -> Iterable[Alarm]:
    """Parameters are equal on all ranks after the step, or near where gradients are
    apart ``by_rounding``: then they go on apart.
    """
    name, ranks = _unlike(rows)
    if not ranks:
        return
    where = {"ranks": ranks, "tensor": name}
    was, far = before and _unlike(before)[1], apart(rows)
    if far > FAR and (by_rounding or was) and not apart(before or rows[:1]) > FAR:
        what = f"about {far:.1g} of the model apart"
        cause = "gradients apart by rounding, for long; or another fault beside it"
        yield alarm(rows, "parameters", what, cause, **where)
    # else it was told then, or the gradients were
    elif not (was or by_rounding):
        what, cause = of_unlike_parameters(rows, before, name)
        yield alarm(rows, "parameters", what, cause, **where)


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


def _parted_at_the_end(ends: Rows, before: Sequence[Rows]) -> Iterable[Alarm]:
    if not all("parameters" in end for end in ends):
        return
    name, ranks = _unlike(ends)
    far = apart(ends)
    parted = any(_unlike(rows)[1] for rows in before)
    # then it was told, or gradients are apart by rounding
    told = parted and (far <= FAR or any(apart(rows) > FAR for rows in before))
    if ranks and not told:
        what = "unlike those of the others at the end, about "
        what += f"{far:.1g} of the model apart"
        cause = "a step after the last recorded one: every=1 finds it and its cause"
        yield alarm(ends, "parameters", what, cause, ranks=ranks, tensor=name)


def also(rows: Rows, before: Rows | None = None) -> Iterable[Alarm]:
    """Modules beside the model are equal on all ranks that record them."""
    have = [rank for rank, row in enumerate(rows) if "also" in row]
    name, found = first_unlike([rows[rank]["also"] for rank in have])
    if found:
        what = "unlike those of the others, beside the model"
        cause = "made, loaded or updated in another way on ranks, or on one alone"
        ranks = [have[number] for number in found]
        yield alarm(rows, "also", what, cause, ranks=ranks, tensor=name)


RULES: tuple[Callable[[Rows, Rows | None], Iterable[Alarm]], ...] = (
    of_progress.evaluation_mode,
    of_inputs.unread,
    of_inputs.same_samples,
    of_progress.forward_passes,
    of_progress.learning_rates,
    of_progress.settings,
    buffers,
    of_progress.wrappers,
    of_gradients.gradients,
    of_progress.carried,
    of_progress.touched,
    of_gradients.no_gradient,
    of_progress.not_finite,
    of_progress.unmoved,
    of_progress.not_held,
    of_progress.synchronized_often,
    of_inputs.random_numbers,
    of_inputs.shared_generators,
    also,
)
