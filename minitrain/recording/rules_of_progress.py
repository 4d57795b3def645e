"""That ranks do the same at a step, and that the step moves what it should."""

import math
from collections.abc import Hashable, Sequence

from minitrain.recording.alarm import (
    Alarm,
    Row,
    Rows,
    alarm,
    all_names,
    in_ranks,
    unlike,
)

# a step, as a share of a parameter, that float32 may well round away
ROUNDED = 1e-6


def forward_passes(rows: Rows, before: Rows | None) -> list[Alarm]:
    """As many on all ranks, since the recorded step before; a rank may look at what its
    model makes of a batch, so it is a note.
    """
    was = [0] * len(rows) if before is None else [row["forwards"] for row in before]
    counts = [row["forwards"] - then for row, then in zip(rows, was, strict=True)]
    ranks = unlike(counts)
    if not ranks:
        return []
    usual = next(n for rank, n in enumerate(counts) if rank not in ranks)
    what = f"{counts[ranks[0]]} forward passes for this step, but elsewhere {usual}"
    cause = "unlike numbers of batches, or passes that are not of the training"
    through = [row for rank, row in enumerate(rows) if rank in ranks]
    if any(sum(map(bool, row["syncs"])) > row.get("reductions", 0) for row in through):
        cause = (
            "a batch whose backward pass was skipped: from here on collectives average "
            "other batches than those that belong together"
        )
    step = rows[0]["step"]
    return [alarm("steps", step, what, ranks=ranks, cause=cause, severe=False)]


def learning_rates(rows: Rows, before: Rows | None) -> list[Alarm]:
    """The same on all ranks."""
    rates = [tuple(row.get("lr", ())) for row in rows]
    ranks = unlike(rates)
    if not ranks:
        return []
    usual = next(one for rank, one in enumerate(rates) if rank not in ranks)
    what = f"{_numbers(rates[ranks[0]])}, but elsewhere {_numbers(usual)}"
    cause = "a schedule that goes by what only one rank knows (its own loss?)"
    return [alarm("learning rates", rows[0]["step"], what, ranks=ranks, cause=cause)]


def _numbers(rates: tuple[float, ...]) -> str:
    return ", ".join(f"{rate:.6g}" for rate in rates)


def settings(rows: Rows, before: Rows | None) -> list[Alarm]:
    """The optimizer's, for each parameter that ranks have in it."""
    tables = [settings_of(row) for row in rows]
    for name in all_names(tables):
        have = [table.get(name, {}) for table in tables]
        for key in all_names(have):
            values = [one[key] for one in have if key in one]
            ranks = unlike(values)
            if ranks and len(values) == len(rows):
                usual = next(v for rank, v in enumerate(values) if rank not in ranks)
                what = f"{key} = {values[ranks[0]]}, but elsewhere {usual}"
                step, cause = (
                    rows[0]["step"],
                    "the optimizer is made otherwise on ranks",
                )
                return [
                    alarm(
                        "optimizer settings",
                        step,
                        what,
                        ranks=ranks,
                        tensor=name,
                        cause=cause,
                    )
                ]
    return []


def settings_of(row: Row) -> dict[str, dict[str, Hashable]]:
    """Of each parameter in the optimizer, by name: its group's settings."""
    found: dict[str, dict[str, Hashable]] = {}
    for group in row.get("groups", []):
        settings = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in group["settings"].items()
        }
        found |= dict.fromkeys(group["parameters"], settings)
    return found


def wrappers(rows: Rows, before: Rows | None) -> list[Alarm]:
    """The same wrapper as before: one made anew forgets its hooks, and broadcasts."""
    now = [row.get("wrapper_id", 0) for row in rows]
    was = [0] * len(rows) if before is None else [row["wrapper_id"] for row in before]
    grown = any(new > max(old, 1) for new, old in zip(now, was, strict=True))
    if not grown:
        return []
    what = f"wrapper number {max(now)} of the model"
    cause = "the model is wrapped anew (in the loop?)"
    return [alarm("wrapper", rows[0]["step"], what, cause=cause, severe=False)]


def not_finite(rows: Rows, before: Rows | None) -> list[Alarm]:
    """Numbers, on one rank at least: that of a rank alone is unlike the others'."""
    for kind in ("gradients", "parameters", "buffers"):
        tables = [row.get(kind, {}) for row in rows]
        names = [name for name in all_names(tables) if _none_finite(tables, name)]
        if kind == "buffers":
            # a mask may be made of infinity
            was = [row.get(kind, {}) for row in before or ()]
            names = [name for name in names if was and not _none_finite(was, name)]
        if names:
            what = f"NaN or infinity in {kind} ({len(names)} such tensors)"
            step, name, cause = rows[0]["step"], names[0], "overflow, or 0 / 0"
            ranks = _not_finite_alone(rows) if kind == "gradients" else []
            if ranks:
                of_inputs = any(rows[rank].get("not_finite") for rank in ranks)
                what += f"; before the reduction only on {in_ranks(ranks)}, with "
                what += f"inputs that are {'not ' * of_inputs}finite"
            return [
                alarm(
                    "not finite",
                    step,
                    what,
                    ranks=ranks,
                    tensor=name,
                    cause=cause,
                    severe=False,
                )
            ]
    return []


def _not_finite_alone(rows: Rows) -> list[int]:
    """Ranks whose own gradients are not finite, if those of another are."""
    own = [[x for sketch in row["own"].values() for x in sketch] for row in rows]
    ranks = [n for n, one in enumerate(own) if not all(map(math.isfinite, one))]
    return ranks if len(ranks) < len(rows) else []


def _none_finite(tables: Sequence[Row], name: str) -> bool:
    # of integers there is no norm
    have = [table[name].get("norm", 0.0) for table in tables if name in table]
    return not any(map(math.isfinite, have))


def unmoved(rows: Rows, before: Rows | None) -> list[Alarm]:
    """No tensor stays as it is, at two recorded steps in a row, that has a gradient and
    a learning rate which are more than what rounding takes in float32.
    """
    if before is None:
        return []
    stayed = _stay(before[0])
    names = [name for name in _stay(rows[0]) if name in stayed]
    if not names:
        return []
    what = f"has a gradient and does not change, again ({len(names)} such tensors)"
    cause = (
        "the optimizer holds another tensor, its step is undone, or is less than what "
        "the dtype keeps"
    )
    return [_noted("unmoved", rows, what, cause, names)]


def _stay(row: Row) -> list[str]:
    rate, before = min(row.get("lr", []), default=0.0), row.get("before", {})
    # a step of Adam is as long as the rate, one of SGD as rate times gradient
    if rate <= ROUNDED:
        return []
    return [
        name
        for name, value in row.get("parameters", {}).items()
        if value["hash"] == before.get(name)
        and name in row.get("gradients", {})
        and rate * row["gradients"][name]["norm"] > ROUNDED * value["norm"]
    ]


def not_held(rows: Rows, before: Rows | None) -> list[Alarm]:
    """Every trained parameter is in an optimizer."""
    names = rows[0].get("not_held", [])
    if not names:
        return []
    groups = [group for row in rows for group in row["groups"]]
    if groups and not any(group["parameters"] for group in groups):
        what = f"the optimizer holds no parameter of the model ({len(names)} tensors)"
        cause = "made before the model was copied or moved, or for another model"
        step, name = rows[0]["step"], names[0]
        return [alarm("not held", step, what, tensor=name, cause=cause, tensors=names)]
    what = f"in no optimizer ({len(names)} such tensors)"
    cause = "not given to it, or made, or replaced, after it"
    return [_noted("not held", rows, what, cause, names)]


def _noted(rule: str, rows: Rows, what: str, cause: str, names: Sequence[str]) -> Alarm:
    return alarm(
        rule,
        rows[0]["step"],
        what,
        tensor=names[0],
        cause=cause,
        severe=False,
        tensors=names,
    )


def synchronized_often(rows: Rows, before: Rows | None) -> list[Alarm]:
    """Of the backward passes of one step only the last synchronizes."""
    times = max(row.get("reductions", 0) for row in rows)
    if times < 2:
        return []
    what = f"gradients are synchronized {times} times, once is enough"
    cause = "gradients accumulated without no_sync"
    step = rows[0]["step"]
    return [alarm("synchronization", step, what, cause=cause, severe=False)]


def evaluation_mode(rows: Rows, before: Rows | None = None) -> list[Alarm]:
    """Steps come from forward passes in training mode, if they did before."""
    ranks = [rank for rank, row in enumerate(rows) if "in_eval" in row]
    if not ranks:
        return []
    step = min(rows[rank]["in_eval"] for rank in ranks)
    what = "trained in eval() from this step on: without dropout, or with the "
    what += "statistics of batch norm as they are"
    cause = "no model.train() after a validation"
    whom = ranks if len(ranks) < len(rows) else []
    return [alarm("evaluation mode", step, what, ranks=whom, cause=cause)]


def carried(rows: Rows, before: Rows | None) -> list[Alarm]:
    """A step does not use the gradients of the one before again."""
    tables = [row.get("carried", []) for row in rows]
    names: list[str] = next((names for names in tables if names), [])
    if not names:
        return []
    ranks = [rank for rank, found in enumerate(tables) if found]
    what = f"holds the gradient of the step before, too ({len(names)} such tensors)"
    cause = "no zero_grad() after the step"
    whom = ranks if len(ranks) < len(rows) else []
    step = rows[0]["step"]
    return [alarm("zero_grad", step, what, ranks=whom, tensor=names[0], cause=cause)]
