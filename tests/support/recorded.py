"""Recordings of a small data-parallel training simulated in one process, with plans
that inject known differences.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from recorded_rows import PLAIN, headers
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from minitrain.recording.fingerprint import digest, fingerprint, sketch
from minitrain.recording.format import Writer, line_of

Tensors = dict[str, Tensor]
NUM_SAMPLES, BATCH, SIZE, CLASSES = 640, 16, 12, 4
# the tensor that `bias` changes
BIAS = "hidden.bias"


def adamw(parameters: Any, lr: float) -> Optimizer:
    return AdamW(parameters, lr=lr, weight_decay=0.1)


def sgd(parameters: Any, lr: float) -> Optimizer:
    return SGD(parameters, lr=30 * lr, momentum=0.9, weight_decay=1e-4)


class Model(nn.Module):
    """Every kind of tensor: an embedding, attention with a bias of keys, norms."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(1, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm = nn.LayerNorm(16)
        self.hidden = nn.Linear(16, 32)
        self.out = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inside(x.unsqueeze(-1))
        h = self.norm(h + self.attention(h, h, h, need_weights=False)[0])
        return self.out(nn.functional.gelu(self.hidden(h)).mean(1))


class Normalized(nn.Module):
    """Model with batch norm, whose output depends on the whole batch of a rank."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(SIZE, 32)
        self.norm = nn.BatchNorm1d(32)
        self.out = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(nn.functional.relu(self.norm(self.hidden(x))))


def mean(own: Sequence[Tensors], rank: int, step: int) -> Tensors:
    return {name: sum(one[name] for one in own) / len(own) for name in own[0]}  # type: ignore


def reduced(change: Callable[[Tensor], Tensor], *steps: int) -> Callable[..., Tensors]:
    """The mean, with a change to each tensor (at these steps)."""

    def reduce(own: Sequence[Tensors], rank: int, step: int) -> Tensors:
        found = mean(own, rank, step)
        is_here = not steps or step in steps
        return {n: change(g) for n, g in found.items()} if is_here else found

    return reduce


def bias(change: Callable[..., Tensor | None]) -> Callable[..., Tensors]:
    """The mean, with a change to one tensor, or without it."""

    def reduce(own: Sequence[Tensors], rank: int, step: int) -> Tensors:
        found = mean(own, rank, step)
        changed = found | {BIAS: change(found[BIAS], own, rank, step)}
        return {name: g for name, g in changed.items() if g is not None}

    return reduce


def dealt(step: int, world_size: int, order: Tensor) -> list[Tensor]:
    """Return the samples of each rank: every W-th of the batch."""
    start = step * BATCH % NUM_SAMPLES
    batch = order[start : start + BATCH]
    return [batch[rank::world_size] for rank in range(world_size)]


@dataclass
class Plan:
    world_size: int = 1
    steps: int = 24
    every: int = 10
    seed: int = 0
    model: Callable[[], nn.Module] = Model
    optimizer: Callable[..., Optimizer] = adamw
    lr: Callable[[int], float] = lambda step: 1e-3
    deal: Callable[[int, int, Tensor], list[Tensor]] = dealt
    reduce: Callable[[Sequence[Tensors], int, int], Tensors] = mean
    # called with models and optimizers before the first step, and with the step around
    # each
    begin: Callable[[list[nn.Module], list[Optimizer]], Any] = lambda *_: None
    early: Callable[[int, list[nn.Module], list[Optimizer]], Any] = lambda *_: None
    after: Callable[[int, list[nn.Module], list[Optimizer]], Any] = lambda *_: None
    loss: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy
    autocast: bool = False
    twin: bool = False
    with_own: bool = True
    draws: bool = False
    header: dict[str, Any] = field(default_factory=dict)


def record(folder: Path, **changes: Any) -> Path:
    """Train by a :class:`Plan` with changes, and leave its recording in ``folder``."""
    plan = Plan(**changes)
    ranks = range(plan.world_size)
    torch.manual_seed(plan.seed)
    model = plan.model()
    with torch.no_grad():
        for parameter in model.parameters():
            # biases of zero would have no unit in the last place
            parameter += 0.01 * torch.randn_like(parameter)
            if plan.twin:
                upwards = torch.full_like(parameter, torch.inf)
                parameter.copy_(torch.nextafter(parameter, upwards))
    x = torch.randn(NUM_SAMPLES, SIZE)
    y = torch.randint(CLASSES, (NUM_SAMPLES,))
    order = torch.randperm(NUM_SAMPLES)
    models = [plan.model() for _ in ranks]
    for one in models:
        one.load_state_dict(model.state_dict())
    optimizers = [plan.optimizer(one.parameters(), lr=plan.lr(0)) for one in models]
    plan.begin(models, optimizers)
    writers = [Writer(folder, rank) for rank in ranks]
    for rank, writer in enumerate(writers):
        writer.append(line_of(_header(plan, rank, models[rank])))
    for step in range(plan.steps):
        plan.early(step, models, optimizers)
        batches = plan.deal(step, plan.world_size, order)
        buffers = [buffers_of(one) for one in models]
        own = [_own(plan, models[r], x[batches[r]], y[batches[r]]) for r in ranks]
        for rank in ranks:
            optimizer, one = optimizers[rank], models[rank]
            gradients = plan.reduce(own, rank, step)
            before = {n: digest(p) for n, p in one.named_parameters()}
            for name, parameter in one.named_parameters():
                parameter.grad = gradients[name].clone() if name in gradients else None
            rate = plan.lr(step) * optimizer.defaults["lr"] / plan.lr(0)
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            if step < 3 or step % plan.every == 0:
                digests = [digest(row)[:16] for row in x[batches[rank]]]
                row = _row(plan, step, one, optimizer, gradients, own[rank], before)
                row |= {"inputs": [digests], "buffers": buffers[rank]}
                writers[rank].append(line_of(row))
        plan.after(step, models, optimizers)
    for writer, one in zip(writers, models, strict=True):
        end = {"steps": {"0": plan.steps}, "forwards": plan.steps}
        end |= {"parameters": _parameters(one), "buffers": buffers_of(one)}
        writer.append(line_of({"kind": "end", **end}))
        writer.close()
    return folder


def _own(plan: Plan, model: nn.Module, x: Tensor, y: Tensor) -> Tensors:
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=plan.autocast):
        loss = plan.loss(model(x), y)
    loss.backward()
    return {
        n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None
    }


def buffers_of(model: nn.Module) -> dict[str, Any]:
    return {
        name: fingerprint(b) if b.is_floating_point() else {"hash": digest(b)}
        for name, b in model.named_buffers()
    }


def _parameters(model: nn.Module) -> dict[str, Any]:
    return {n: fingerprint(p.detach()) for n, p in model.named_parameters()}


def _header(plan: Plan, rank: int, model: nn.Module) -> dict[str, Any]:
    about = {
        name: {"shape": [*p.shape], "dtype": str(p.dtype)[6:], "trained": True}
        for name, p in model.named_parameters()
    }
    usual = headers(plan.world_size, every=plan.every, twin=plan.twin)[rank]
    start = {name: digest(p) for name, p in model.named_parameters()}
    return usual | {"parameters": about, "start": start} | plan.header


def _row(
    plan: Plan,
    step: int,
    model: nn.Module,
    optimizer: Optimizer,
    gradients: Tensors,
    own: Tensors,
    before: dict[str, str],
) -> dict[str, Any]:
    wrapper = "DistributedDataParallel" if plan.world_size > 1 else ""
    moments = {
        name: digest(torch.cat([torch.as_tensor(v).double().flatten() for v in kept]))
        for name, p in model.named_parameters()
        if (kept := [v for v in optimizer.state[p].values() if v is not None])
    }
    return PLAIN | {
        "step": step,
        "forwards": step + 1,
        "lr": [group["lr"] for group in optimizer.param_groups],
        "draws": plan.draws,
        "wrapper": wrapper,
        "synced": True if wrapper else None,
        "syncs": [True if wrapper else None],
        "group": plan.world_size if wrapper else None,
        "own": {n: sketch(t) for n, t in own.items()} if plan.with_own else {},
        "gradients": {name: fingerprint(t) for name, t in gradients.items()},
        "parameters": _parameters(model),
        "before": before,
        "moments": moments,
    }


def rows_of(folder: Path, rank: int = 0) -> list[dict[str, Any]]:
    lines = (folder / f"rank-{rank}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def write(folder: Path, rows: list[dict[str, Any]], rank: int = 0) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / f"rank-{rank}.jsonl").write_text(text)


def alter(
    folder: Path,
    rank: int,
    change: Callable[[dict[str, Any]], Any],
    at: int | None = None,
) -> None:
    """Change each step of a rank, or the step ``at``."""
    rows = rows_of(folder, rank)
    for row in rows:
        if row["kind"] == "step" and at in (None, row["step"]):
            change(row)
    write(folder, rows, rank)
