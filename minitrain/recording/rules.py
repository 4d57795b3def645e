"""Rules between the ranks of a data-parallel run, checked on their rows.

Pure functions: a row is a line of a recording, and rows are those of the same step of
all ranks, in rank order. A fault is told once, at its root: where gradients differ,
the parameters that follow are not reported.
"""

from collections.abc import Callable, Iterable, Sequence

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
from minitrain.recording.rules_of_parameters import (
    NOT_BROADCAST,
    parameters,
    parted_at_the_end,
)

# passes of a run that need not be a training: to try a model, or to profile it
MOST_OF_A_TRIAL = 3
# what takes parameters apart where it is unlike
LEADS = {"gradients", "learning rates", "optimizer settings"}


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
    yield from parted_at_the_end(ends, before)


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
