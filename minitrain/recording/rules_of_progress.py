"""Rules on what ranks do at a step, and on what the step changes."""

import math
from collections.abc import Hashable, Iterable

from minitrain.recording.alarm import (
    Alarm,
    Row,
    Rows,
    against,
    alarm,
    all_names,
    in_ranks,
    note,
    unless_all,
    unlike,
)

# a step, as a share of a parameter, that float32 may well round away
ROUNDED = 1e-6


def forward_passes(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    """Ranks make as many since the recorded step before. A note: a rank may look at
    what its model computes for a batch.
    """
    was = [row["forwards"] for row in before or ()] or [0] * len(rows)
    counts = [row["forwards"] - then for row, then in zip(rows, was, strict=True)]
    if ranks := unlike(counts):
        what = against([f"{n} forward passes for this step" for n in counts], ranks)
        cause = "unlike numbers of batches, or passes that are not of the training"
        through = [rows[rank] for rank in ranks]
        if any(sum(map(bool, o["syncs"])) > o.get("reductions", 0) for o in through):
            cause = (
                "a batch whose backward pass was skipped: from here on collectives "
                "average other batches than those that belong together"
            )
        yield note(rows, "steps", what, cause, ranks=ranks)


def learning_rates(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    """Learning rates are equal on all ranks."""
    if ranks := unlike([tuple(row["lr"]) for row in rows]):
        rates = [", ".join(f"{rate:.6g}" for rate in row["lr"]) for row in rows]
        cause = "a schedule that goes by what only one rank knows (its own loss?)"
        yield alarm(rows, "learning rates", against(rates, ranks), cause, ranks=ranks)


def settings(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    """Settings of the optimizer are equal for each parameter that ranks have in it."""
    tables = [settings_of(row) for row in rows]
    for name in all_names(tables):
        have = [table.get(name, {}) for table in tables]
        for key in all_names(have):
            values = [one[key] for one in have if key in one]
            ranks = unlike(values)
            if ranks and len(values) == len(rows):
                what = f"{key} = {against(values, ranks)}"
                cause = "the optimizer is made otherwise on ranks"
                where = {"ranks": ranks, "tensor": name}
                yield alarm(rows, "optimizer settings", what, cause, **where)
                return


def settings_of(row: Row) -> dict[str, dict[str, Hashable]]:
    """Return the settings of each parameter in the optimizer, by name."""
    found: dict[str, dict[str, Hashable]] = {}
    for group in row["groups"]:
        settings = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in group["settings"].items()
        }
        found |= dict.fromkeys(group["parameters"], settings)
    return found


def wrappers(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    """The wrapper is the one of before: a new one forgets its hooks, and broadcasts."""
    now = [row["wrapper_id"] for row in rows]
    was = [row["wrapper_id"] for row in before or ()] or [0] * len(rows)
    if any(new > max(old, 1) for new, old in zip(now, was, strict=True)):
        what = f"wrapper number {max(now)} of the model"
        yield note(rows, "wrapper", what, "the model is wrapped anew (in the loop?)")


def not_finite(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    """Tensors are finite on one rank at least: one of a rank alone is seen by the rules
    that compare ranks.
    """
    for kind in ("gradients", "parameters", "buffers"):
        names = _none_finite(rows, kind)
        if kind == "buffers":
            # a mask may be made of infinity
            was = _none_finite(before or (), kind)
            names = [n for n in names if before and n in before[0][kind]]
            names = [n for n in names if n not in was]
        if names:
            what = f"NaN or infinity in {kind} ({len(names)} such tensors)"
            ranks = _not_finite_alone(rows) if kind == "gradients" else []
            if ranks:
                of_inputs = any(rows[rank].get("not_finite") for rank in ranks)
                what += f"; before the reduction only on {in_ranks(ranks)}, with "
                what += f"inputs that are {'not ' * of_inputs}finite"
            where = {"ranks": ranks, "tensor": names[0]}
            yield note(rows, "not finite", what, "overflow, or 0 / 0", **where)
            return


def _not_finite_alone(rows: Rows) -> list[int]:
    # own gradients, if those of another rank are finite
    own = [[x for sketch in row["own"].values() for x in sketch] for row in rows]
    ranks = [n for n, one in enumerate(own) if not all(map(math.isfinite, one))]
    return ranks if len(ranks) < len(rows) else []


def _none_finite(rows: Rows, kind: str) -> list[str]:
    tables = [row[kind] for row in rows]
    # of integers there is no norm
    return [
        name
        for name in all_names(tables)
        if not any(math.isfinite(t[name].get("norm", 0)) for t in tables if name in t)
    ]


def unmoved(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    """A tensor changes at one of two recorded steps in a row, if its gradient and the
    learning rate are more than what rounding takes in float32.
    """
    stayed = _stay(before[0]) if before else []
    if names := [name for name in _stay(rows[0]) if name in stayed]:
        what = f"has a gradient and does not change, again ({len(names)} such tensors)"
        cause = "the optimizer holds another tensor, or its step is undone or too small"
        where = {"tensor": names[0], "tensors": names}
        yield note(rows, "unmoved", what, cause, **where)


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
    """Every trained parameter is in an optimizer."""
    names, groups = rows[0]["not_held"], [one for row in rows for one in row["groups"]]
    if names:
        what = f"in no optimizer ({len(names)} such tensors)"
        cause = "not given to it, or made, or replaced, after it"
        severe = bool(groups) and not any(group["parameters"] for group in groups)
        if severe:
            what = f"the optimizer holds no parameter of the model ({len(names)})"
            cause = "made before the model was copied or moved, or for another model"
        where = {"tensor": names[0], "tensors": names, "severe": severe}
        yield alarm(rows, "not held", what, cause, **where)


def synchronized_often(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    """Only the last backward pass of a step synchronizes."""
    times = max(row.get("reductions", 0) for row in rows)
    if times > 1:
        what = f"gradients are synchronized {times} times, once is enough"
        cause = "gradients accumulated without no_sync"
        yield note(rows, "synchronization", what, cause)


def evaluation_mode(rows: Rows, before: Rows | None = None) -> Iterable[Alarm]:
    """Steps come from forward passes in training mode, if they did before."""
    if ranks := [rank for rank, row in enumerate(rows) if "in_eval" in row]:
        what = "trained in eval() from this step on: without dropout, or with the "
        what += "statistics of batch norm as they are"
        cause = "no model.train() after a validation"
        first = [{"step": min(rows[rank]["in_eval"] for rank in ranks)}]
        where = {"ranks": unless_all(ranks, rows)}
        yield alarm(first, "evaluation mode", what, cause, **where)


def carried(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    """No step uses the gradients of the one before again."""
    if ranks := [rank for rank, row in enumerate(rows) if row.get("carried")]:
        names = rows[ranks[0]]["carried"]
        what = f"holds the gradient of the step before, too ({len(names)} such tensors)"
        where = {"ranks": unless_all(ranks, rows), "tensor": names[0]}
        yield alarm(rows, "zero_grad", what, "no zero_grad() after the step", **where)


def touched(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    """Gradients stay as they are between passes that are not synchronized."""
    names: list[str] = next(filter(None, (row.get("touched") for row in rows)), [])
    if names and len(rows) > 1:
        what = f"changed between the passes of a step ({len(names)} such tensors)"
        cause = "clipped before the reduction: clip once, after the last pass"
        yield note(rows, "clipping", what, cause, tensor=names[0])
