"""Check of the optimizer's step, from a recorded state and gradient."""

from collections.abc import Iterator

import torch
from torch import Tensor

from minitrain.proof.witness.record import (
    Gap,
    Record,
    RungDict,
    Task,
    compare,
    largest,
    rung,
)

# torch's defaults (torch.optim.AdamW)
BETA1, BETA2, EPSILON, WEIGHT_DECAY = 0.9, 0.999, 1e-8, 1e-2
ZERO = torch.zeros(())
# elements computed at a time: with more, torch starts threads for each operation
PIECE = 1 << 15


def step_rung(task: Task, record: Record) -> RungDict:
    """Return the rung of the optimizer: recorded parameters and moments must match a
    step from the recorded state and gradient. A step rounds the parameter twice and its
    terms at most eight times, so that many units in the last place of each are allowed.
    """
    worst: list[Gap] = []
    for step in record.steps():
        gradients = record.of(step, "gradients")
        # a scaler skips a step that overflowed
        left_out = task.precision == "fp16" and not all(
            bool(gradient.isfinite().all()) for gradient in gradients.values()
        )
        if task.optimizer == "adamw":
            if wrong := _count_is_wrong(task, record, step):
                return rung("breach", f"step {step}: {wrong}")
            if not left_out:
                worst.append(largest(_moments(record, step)))
        for name in record.of(step, "after"):
            taken = None if left_out else gradients.get(name)
            worst.append(largest(_next(task, record, step, name, taken)))
    return largest(worst).rung()


def _count_is_wrong(task: Task, record: Record, step: int) -> str:
    moments = record.of(step, "moments")
    counts = [float(t) for key, t in moments.items() if key.endswith("/step")]
    most = max(counts, default=0.0)
    # the number of steps that a scaler skipped is not recorded
    if task.precision != "fp16" and most != step:
        return f"the optimizer has taken {most:.0f} steps"
    for name in record.of(step, "gradients"):
        count = float(moments.get(f"{name}/step", 0.0))
        least = _steps_seen(record, name, step, task.precision)
        if not least <= count <= step:
            return f"{name} has taken {count:.0f} steps, at least {least} seen"
    return ""


def _steps_seen(record: Record, name: str, step: int, precision: str) -> int:
    # earlier steps known to have updated a parameter: with a scaler, those that changed
    # its value
    rows = {row["step"]: row for row in record.kind("tensors") if row["rank"] == 0}
    earlier = [s for s, row in rows.items() if s < step and name in row["gradients"]]
    if precision != "fp16":
        return len(earlier)
    values = {s: row["parameters"][name] for s, row in rows.items()}
    return sum(values.get(s - 1, values[s]) != values[s] for s in earlier)


def _moments(record: Record, step: int) -> Iterator[Gap]:
    # if the next step is sampled too, its moments before are this step's moments after
    gradients, moments = record.of(step, "gradients"), record.of(step, "moments")
    later = record.of(step + 1, "moments")
    for name, gradient in gradients.items() if step + 1 in record.steps() else ():
        for key, beta in (("exp_avg", BETA1), ("exp_avg_sq", BETA2)):
            found = later.get(f"{name}/{key}", torch.zeros_like(gradient))
            old = moments.get(f"{name}/{key}", ZERO)
            unit = torch.finfo(found.dtype)
            where = f"{key} after step {step}, tensor {name}"
            for one, was, g in _pieces(found, old, gradient):
                was, new = was.double(), g.double()
                if key == "exp_avg_sq":
                    new = new * new
                terms = beta * was.abs() + (1 - beta) * new.abs()
                allowed = 4 * unit.eps * (terms + unit.smallest_normal)
                yield compare(one, beta * was + (1 - beta) * new, allowed, where)


def _next(
    task: Task, record: Record, step: int, name: str, gradient: Tensor | None
) -> Iterator[Gap]:
    # a parameter without a gradient must not change
    kept = record.tensors
    before, after = (kept[f"{step}/{kind}/{name}"] for kind in ("before", "after"))
    m, v, taken = (
        kept.get(f"{step}/moments/{name}/{key}", ZERO)
        for key in ("exp_avg", "exp_avg_sq", "step")
    )
    unit, g = torch.finfo(after.dtype).eps, ZERO if gradient is None else gradient
    for one, *parts in _pieces(after, before, g, m, v):
        w, g, m, v = (part.double() for part in parts)
        wanted, terms = w, ZERO
        if gradient is not None:
            wanted, terms = next_value(task, w, g, m, v, float(taken) + 1)
        allowed = unit * (2 * w.abs() + 8 * terms)
        yield compare(one, wanted, allowed, f"step {step}, tensor {name}")


def _pieces(first: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    # matching chunks of tensors of one shape; scalars stand for all elements. Small
    # enough for a processor's cache
    parts = [
        (t.flatten() if t.dim() else t.expand(first.numel())).split(PIECE)
        for t in (first.reshape(-1), *others)
    ]
    if first.numel():
        yield from zip(*parts, strict=True)


def next_value(
    task: Task, w: Tensor, g: Tensor, m: Tensor, v: Tensor, t: float
) -> tuple[Tensor, Tensor]:
    """Return parameter w after step number t (from 1) with gradient g, given AdamW's
    moments m and v before it. Also return the sum of the absolute terms of the step,
    which bounds its rounding. All in float64.
    """
    rate = task.learning_rate
    if task.optimizer == "sgd":
        return w - rate * g, rate * g.abs()
    terms = BETA1 * m.abs() + (1 - BETA1) * g.abs()
    m, v = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g * g
    scale = rate / (1 - BETA1**t) / ((v / (1 - BETA2**t)).sqrt() + EPSILON)
    return w * (1 - rate * WEIGHT_DECAY) - scale * m, scale * terms
