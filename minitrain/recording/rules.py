"""The rules of a data-parallel run, checked step by step on the rows of all ranks.

A rule gets ``rows``, the row of each rank for one step, in rank order, and ``before``,
those of the recorded step before of the same optimizer (None at the first). It is a
pure function that yields alarms, and notes on what may be intended. A fault is reported
once, at its root: not parameters that differ because gradients do. Of the findings of
one name, the first alarm and the first note are reported (judge.py). Rank 0 applies
rules during a run (rank_exchange.py). CONTRIBUTING.md has the steps for a new rule.
"""

from collections.abc import Callable, Iterable, Sequence

from minitrain.recording import rules_of_gradients as of_gradients
from minitrain.recording import rules_of_state as of_state
from minitrain.recording import rules_of_steps as of_steps
from minitrain.recording.alarm import Alarm, Rows, against, alarm, position_of, unlike

# Rules of each step, with the names of their findings. Others are "model" at the start,
# "parameters" and "steps" (below), "padding" and "same batch" (judge.py), and what no
# row shows: "modules", "ranks", "stall" and "static graph", from the other files.
RULES: tuple[Callable[[Rows, Rows | None], Iterable[Alarm]], ...] = (
    of_steps.unread,  # "inputs"
    of_steps.same_samples,  # "inputs", "number of samples"
    of_steps.forward_passes,  # "steps"
    of_steps.learning_rates,  # "learning rates"
    of_steps.settings,  # "optimizer settings"
    of_state.buffers,  # "buffers"
    of_steps.wrappers,  # "wrapper"
    # "gradients", "averaged in step", "mean", "not the mean"
    of_gradients.gradients,
    of_gradients.carried,  # "zero_grad"
    of_gradients.no_gradient,  # "no gradient"
    of_steps.not_finite,  # "not finite"
    of_state.unmoved,  # "unmoved"
    of_state.not_held,  # "not held"
    of_gradients.synchronized_often,  # "synchronization"
    of_steps.random_numbers,  # "random numbers"
    of_state.also,  # "also"
)
# alarms on some ranks that explain parameters that differ: these are not reported then
LEADS = {"gradients", "learning rates", "optimizer settings"}


def alarms_of(rows: Rows, before: Rows | None) -> list[Alarm]:
    """Return the findings of :data:`RULES`, and on parameters, at a step; of ranks at
    different steps, one.
    """
    places = [position_of(row) for row in rows]
    if ranks := unlike(places):
        step = max(int(row.get("step", 0)) for row in rows)
        cause = "different numbers of batches, or of steps, on ranks"
        return [Alarm("steps", step, f"at {against(places, ranks)}", cause, ranks)]
    found = [one for rule in RULES for one in rule(rows, before)]
    if not any(one.rule in LEADS and one.ranks and one.severe for one in found):
        noted = any(one.rule == "gradients" for one in found)
        found += of_state.parameters(rows, before, by_rounding=noted)
    return found


def alarms_at_end(ends: Rows, before: Sequence[Rows], start: Rows) -> Iterable[Alarm]:
    """Yield findings on ``ends``, the last row of each rank. ``before``: the rows of
    the last recorded step of each optimizer; ``start``: the headers.
    """
    counts = [sum(end["steps"].values()) for end in ends]
    ends = [{"step": max(counts)} | {**end} for end in ends]
    if ranks := unlike([tuple(sorted(end["steps"].items())) for end in ends]):
        what = against([f"{count} steps" for count in counts], ranks)
        cause = "different numbers of batches on ranks"
        yield alarm(ends, "steps", what, cause, ranks=ranks)
        return
    yield from of_state.also(ends, None)
    yield from of_steps.unseen(ends, start)
    yield from of_state.parted_at_the_end(ends, before)
