"""The optimizer's step, from a recorded state and gradient."""

import torch
from torch import Tensor

from minitrain.proof.witness.record import Record, Rung, Task, Tensors, Worst, rung

# torch's defaults (torch.optim.AdamW)
BETA1, BETA2, EPSILON, WEIGHT_DECAY = 0.9, 0.999, 1e-8, 1e-2


def step_rung(task: Task, record: Record) -> Rung:
    """Of the recorded state and gradient the optimizer makes the recorded next state.

    A parameter is rounded twice in a step, the terms of the step at most eight times:
    that many units in the last place of each are allowed.
    """
    worst = Worst()
    for step in record.steps():
        before, moments = record.of(step, "before"), record.of(step, "moments")
        gradients = record.of(step, "gradients")
        finite = all(bool(g.isfinite().all()) for g in gradients.values())
        counts = [float(t) for key, t in moments.items() if key.endswith("/step")]
        # of a scaler nobody knows how many steps it has left out
        if task.optimizer == "adamw":
            if task.precision != "fp16" and max(counts, default=0.0) != step:
                why = f"the optimizer has taken {max(counts, default=0.0):.0f} steps"
                return rung("breach", f"step {step}: {why}")
            if finite or task.precision != "fp16":
                add_moments(worst, record, step)
            for name in gradients:
                count = float(moments.get(f"{name}/step", torch.zeros(())))
                least = steps_seen(record, name, step, task.precision)
                if not least <= count <= step:
                    why = f"{name} has taken {count:.0f} steps, at least {least} seen"
                    return rung("breach", f"step {step}: {why}")
        for name, after in record.of(step, "after").items():
            wanted, terms = before[name].double(), torch.zeros(())
            # a scaler leaves out a step that has overflowed
            if name in gradients and (finite or task.precision != "fp16"):
                wanted, terms = next_value(task, wanted, gradients[name], moments, name)
            unit = torch.finfo(after.dtype).eps
            allowed = unit * (2 * before[name].double().abs() + 8 * terms)
            worst.add(after, wanted, allowed, f"step {step}, tensor {name}")
    return worst.rung()


def steps_seen(record: Record, name: str, step: int, precision: str) -> int:
    """The steps before ``step`` that were surely taken of a parameter: with a scaler,
    those after which it was another.
    """
    rows = {row["step"]: row for row in record.kind("tensors") if row["rank"] == 0}
    seen = 0
    for one, row in rows.items():
        if one < step and name in row["gradients"]:
            before = rows.get(one - 1, {}).get("parameters", {}).get(name)
            moved = before is not None and before != row["parameters"][name]
            seen += precision != "fp16" or moved
    return seen


def add_moments(worst: Worst, record: Record, step: int) -> None:
    """Where the next step is sampled too: its moments are those that this one left."""
    gradients, moments = record.of(step, "gradients"), record.of(step, "moments")
    later = record.of(step + 1, "moments")
    for name, gradient in gradients.items() if step + 1 in record.steps() else ():
        g, zero = gradient.double(), torch.zeros(())
        for key, beta, new in (("exp_avg", BETA1, g), ("exp_avg_sq", BETA2, g * g)):
            found = later.get(f"{name}/{key}", torch.zeros_like(gradient))
            old = moments.get(f"{name}/{key}", zero).double()
            unit = torch.finfo(found.dtype)
            terms = beta * old.abs() + (1 - beta) * new.abs()
            allowed = 4 * unit.eps * (terms + unit.smallest_normal)
            wanted = beta * old + (1 - beta) * new
            where = f"{key} after step {step}, tensor {name}"
            worst.add(found, wanted, allowed, where)


def next_value(
    task: Task, w: Tensor, gradient: Tensor, moments: Tensors, name: str
) -> tuple[Tensor, Tensor]:
    """A parameter after the step, and the size of the terms that make up its step.

    Of a parameter w with gradient g (Loshchilov and Hutter 2019, torch.optim.AdamW).
    """
    g, rate, zero = gradient.double(), task.learning_rate, torch.zeros(())
    if task.optimizer == "sgd":
        return w - rate * g, rate * g.abs()
    m = moments.get(f"{name}/exp_avg", zero).double()
    v = moments.get(f"{name}/exp_avg_sq", zero).double()
    t = float(moments.get(f"{name}/step", zero)) + 1
    terms = BETA1 * m.abs() + (1 - BETA1) * g.abs()
    m, v = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g * g
    scale = rate / (1 - BETA1**t) / ((v / (1 - BETA2**t)).sqrt() + EPSILON)
    return w * (1 - rate * WEIGHT_DECAY) - scale * m, scale * terms
