"""What must hold between the ranks of a data-parallel run, checked on their rows.

Pure functions: a row is a line of a recording, and rows are those of the same step of
all ranks, in rank order. A fault is told once, at its root: where gradients are unlike,
nothing is said of the parameters that follow.
"""

from collections.abc import Callable, Sequence

from minitrain.recording.alarm import (
    Alarm,
    Row,
    Rows,
    alarm,
    first_unlike,
    hashes,
    unlike,
)
from minitrain.recording.causes import not_broadcast
from minitrain.recording.rules_of_gradients import (
    gradients,
    no_gradient,
    own_gradients,
    touched,
)
from minitrain.recording.rules_of_inputs import (
    again,
    random_numbers,
    same_samples,
    shared_generators,
    unread,
)
from minitrain.recording.rules_of_parameters import also, parameters, parted_at_the_end
from minitrain.recording.rules_of_progress import (
    carried,
    evaluation_mode,
    forward_passes,
    learning_rates,
    not_finite,
    not_held,
    settings,
    synchronized_often,
    unmoved,
    wrappers,
)

# of a recording's first line: what is to be the same on all ranks
SAME = ("version", "world_size", "every", "twin", "torch", "threads")
# passes of a run that need not be a training: to try a model, or to profile it
MOST_OF_A_TRIAL = 3
# what takes parameters apart where it is unlike
LEADS = {"gradients", "learning rates", "optimizer settings"}

Rule = Callable[[Rows, Rows | None], list[Alarm]]


def alarms_of(rows: Rows, before: Rows | None) -> list[Alarm]:
    """What is wrong at one step; ``before`` are the rows of the recorded step before
    it, None at the first.
    """
    places = [(row["kind"], row.get("optimizer"), row.get("step")) for row in rows]
    if ranks := unlike(places):
        return [_elsewhere(rows, ranks)]
    found = [one for rule in RULES for one in rule(rows, before)]
    # parameters follow from those
    if not any(one.rule in LEADS and one.ranks and one.severe for one in found):
        noted = any(one.rule == "gradients" for one in found)
        found += parameters(rows, before, by_rounding=noted)
    return found


def alarms_at_start(headers: Rows) -> list[Alarm]:
    """Other models, other start weights, or another setting of the recording."""
    found = []
    tables = [{n: str(v) for n, v in one["parameters"].items()} for one in headers]
    name, ranks = first_unlike(tables)
    if ranks:
        here, usual = (one.get(name, "not there") for one in _pair(tables, ranks))
        what = f"{here}, but elsewhere {usual}"
        cause = "ranks make unlike models: other settings, or other code"
        found.append(alarm("model", 0, what, ranks=ranks, tensor=name, cause=cause))
    else:
        name, ranks = first_unlike([one.get("start", {}) for one in headers])
        if ranks:
            what = "unlike those of the others before the first step"
            cause = not_broadcast(0)
            found.append(
                alarm("parameters", 0, what, ranks=ranks, tensor=name, cause=cause)
            )
    tables = [{n: str(one.get(n)) for n in SAME} for one in headers]
    name, ranks = first_unlike(tables)
    if ranks:
        here, usual = (one[name] for one in _pair(tables, ranks))
        what = f"{name} = {here}, but elsewhere {usual}"
        severe = name not in ("torch", "threads")
        found.append(alarm("settings", 0, what, ranks=ranks, severe=severe))
    return found


def alarms_at_end(
    ends: Sequence[Row | None], before: Sequence[Rows] = (), start: Rows = ()
) -> list[Alarm]:
    """Unlike numbers of steps, recordings without an end (None), and parameters that
    parted after the last recorded step; ``before`` are the rows of that, for each
    optimizer, and ``start`` the first lines. A note where none saw a step, or a pass,
    and has the other.
    """
    left = [rank for rank, end in enumerate(ends) if end is None]
    whole = [end for end in ends if end is not None]
    last = max((sum(end["steps"].values()) for end in whole), default=0)
    if left:
        what = "the recording has no end: killed, or still running"
        return [alarm("steps", last, what, ranks=left)]
    steps = [tuple(sorted(end["steps"].items())) for end in whole]
    if ranks := unlike(steps):
        return [_ended(steps, ranks, last)]
    passes = max((end["forwards"] for end in whole), default=0)
    unseen = _unseen(passes, last, whole, start)
    found = evaluation_mode(whole) + also(whole, last=last) + unseen
    return found + parted_at_the_end(whole, before, last)


def _unseen(passes: int, steps: int, ends: Rows, start: Rows) -> list[Alarm]:
    """All that a recorder can be blind to looks as if it were not done."""
    if bool(passes) == bool(steps):
        return []
    what, cause = f"{passes} passes and no step", "no optimizer of the model makes them"
    still = all(
        hashes(end, "parameters") == header["start"]
        for end, header in zip(ends, start, strict=False)
    )
    if start and still and passes > MOST_OF_A_TRIAL:
        what += ", and no parameter has changed"
        cause = "no optimizer holds parameters of the model: made for a copy of it?"
        return [alarm("steps", steps, what, cause=cause)]
    if steps:
        what = f"{steps} steps and no forward pass of the training"
        cause = "the model is in eval(), or not called itself: data is not recorded"
    return [alarm("steps", steps, what, cause=cause, severe=False)]


def _ended(
    steps: Sequence[tuple[tuple[str, int], ...]], ranks: list[int], last: int
) -> Alarm:
    pair = _pair([dict(one) for one in steps], ranks)
    counts = [sum(one.values()) for one in pair]
    what = f"{counts[0]} steps, but elsewhere {counts[1]}"
    cause = "unlike numbers of batches on ranks"
    return alarm("steps", last, what, ranks=ranks, cause=cause)


def _elsewhere(rows: Rows, ranks: list[int]) -> Alarm:
    """Of ranks that are not where the others are."""
    here, usual = map(place, _pair(rows, ranks))
    what = f"at {here}, while the others are at {usual}"
    step = max(int(one.get("step", 0)) for one in rows)
    cause = "unlike numbers of batches, or of steps, on ranks"
    return alarm("steps", step, what, ranks=ranks, cause=cause)


def place(row: Row) -> str:
    """Where a rank is that sent this row."""
    if row["kind"] != "step":
        return {"recording": "the start", "end": "the end"}.get(row["kind"], "?")
    optimizer = row.get("optimizer", 0)
    return f"step {row['step']}" + (f" of optimizer {optimizer}" if optimizer else "")


def _pair(rows: Rows, ranks: Sequence[int]) -> tuple[Row, Row]:
    """Of one that is unlike the others, and of one of the others."""
    return rows[ranks[0]], next(r for n, r in enumerate(rows) if n not in ranks)


def buffers(rows: Rows, before: Rows | None) -> list[Alarm]:
    """Equal on all ranks as the first forward pass of the step begins; a note where no
    wrapper is there to make them so.
    """
    name, ranks = first_unlike([hashes(row, "buffers") for row in rows])
    if not ranks:
        return []
    what = "unlike those of the others as the forward pass begins"
    severe = all(map(_broadcasts_buffers, rows))
    cause = "rank 0's buffers are not broadcast before the forward pass"
    if not severe:
        cause = (
            "no wrapper broadcasts them: each rank keeps its own, which may be meant"
        )
    return [
        alarm(
            "buffers",
            rows[0]["step"],
            what,
            ranks=ranks,
            tensor=name,
            cause=cause,
            severe=severe,
        )
    ]


def _broadcasts_buffers(row: Row) -> bool:
    """Whether the wrapper is to do so."""
    return bool(row["broadcast_buffers"])


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
