"""Loops of one or several ranks, each right or with a fault that shows against another
run: what a test compares by ``verify``.
"""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from recorded_loops import steps
from torch import Tensor, nn
from torch.distributed.nn.functional import all_gather
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer

STEPS, BATCH, LENGTH, WORDS = 4, 12, 6, 9
# a loop of a rank among so many, recorded in a folder
Loop = Callable[[Path, int, int], None]


class Reader(nn.Module):
    """Predicts words; the loss is computed by the loop, or in the model."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed, self.mix = nn.Embedding(WORDS, 8), nn.Linear(8, 8)
        self.out = nn.Linear(8, WORDS, bias=False)

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> Tensor:
        found = self.out(self.mix(self.embed(ids)).tanh())
        return found if labels is None else total(found, labels) / BATCH / LENGTH


def total(found: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(found.flatten(0, 1), labels.flatten(), reduction="sum")


def words(step: int) -> tuple[Tensor, Tensor]:
    """The batch of all ranks, with unlike numbers of targets in its rows."""
    made = torch.Generator().manual_seed(50 + step)
    ids = torch.randint(WORDS, (BATCH, LENGTH), generator=made)
    lengths = torch.randint(1, LENGTH, (BATCH, 1), generator=made)
    return ids, torch.where(torch.arange(LENGTH) < lengths, (ids + 1) % WORDS, -100)


def wrapped(model: nn.Module, world_size: int) -> Any:
    return DistributedDataParallel(model) if world_size > 1 else model


def accumulated(
    folder: Path,
    rank: int,
    world_size: int,
    *,
    divide: str,
    passes: int,
    sync: bool,
    clip: float = 0.0,
) -> None:
    """Divides by the targets of the whole ``batch``, of this ``rank``, or of the
    ``pass``: then the mean of the passes, or ranks, is none of all targets.
    """
    model = wrapped(Reader(), world_size)
    optimizer = SGD(model.parameters(), lr=0.3)
    for step in steps(folder, model, optimizer, STEPS):
        ids, labels = words(step)
        mine = slice(rank, None, world_size)
        for number, part in enumerate(torch.arange(BATCH)[mine].chunk(passes)):
            counts = {
                "batch": (labels != -100).sum() / world_size,
                "rank": (labels[mine] != -100).sum(),
                "pass": (labels[part] != -100).sum() * passes,
            }
            waits = world_size > 1 and not sync and number < passes - 1
            with model.no_sync() if waits else nullcontext():
                loss = total(model(ids[part]), labels[part]) / counts[divide]
                loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)


def divided(
    folder: Path, rank: int, world_size: int, *, is_divided: bool, loses: bool
) -> None:
    """Train with AdamW, optionally with sharded state; rank 1 ``loses`` some."""
    model = wrapped(Reader(), world_size)
    optimizer: Optimizer = AdamW(model.parameters(), lr=0.01)
    if is_divided:
        # importing it warns
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(model.parameters(), AdamW, lr=0.01)
    for step in steps(folder, model, optimizer, STEPS):
        ids, labels = (one[rank::world_size] for one in words(step))
        model(ids, labels).backward()
        if loses and rank == 1 and step == STEPS - 1:
            keeps = optimizer.optim if is_divided else optimizer
            for state in keeps.state.values():
                state["max_exp_avg_sq"] = torch.ones(1)


def contrastive(folder: Path, rank: int, world_size: int, *, gathers: str) -> None:
    """Train on pairs of views, contrasted within a rank or with those of all ranks
    (``with`` or ``without`` their gradients).
    """
    torch.manual_seed(4)
    model = wrapped(nn.Linear(6, 5), world_size)
    optimizer = SGD(model.parameters(), lr=0.1)
    for step in steps(folder, model, optimizer, STEPS):
        made = torch.Generator().manual_seed(70 + step)
        x = torch.randn(2 * BATCH, 6, generator=made)[rank::world_size]
        mine, others = normalize(model(x), dim=1).chunk(2)
        right = torch.arange(len(mine))
        if gathers != "no":
            right += rank * len(mine)
            gather = all_gather if gathers == "with" else without_gradients
            others = torch.cat([*gather(others)])
        cross_entropy(4 * mine @ others.T, right).backward()


def without_gradients(view: Tensor) -> list[Tensor]:
    """Gather views; only the rank's own keep their gradient."""
    found = [torch.empty_like(view) for _ in range(dist.get_world_size())]
    dist.all_gather(found, view.detach().contiguous())
    found[dist.get_rank()] = view
    return found


def reading(folder: Path, rank: int, world_size: int, *, fault: str) -> None:
    """Train a model that computes its loss, optionally with a fault in its setup."""
    inner = Reader()
    if fault != "never tied":
        inner.out.weight = inner.embed.weight
    if fault == "late":
        inner.mix.requires_grad_(False)
    model = wrapped(inner, world_size)
    if fault == "untied":
        inner.out.weight = nn.Parameter(inner.embed.weight.detach().clone())
    if fault == "replaced":
        # before the first step, which would wait for the old one
        old = inner.mix.weight.detach().clone()
        inner.mix.weight = nn.Parameter(old)
    eps = 1e-6 if fault == "eps" and rank == world_size - 1 else 1e-8
    optimizer = AdamW(inner.parameters(), lr=0.01, eps=eps)
    every = 3 if fault == "late" else 1
    num_steps = {"replaced": 1, "late": 7}.get(fault, STEPS)
    for step in steps(folder, model, optimizer, num_steps, every=every):
        if step == 4 and fault == "late":
            inner.mix.requires_grad_(True)
        ids, labels = (one[rank::world_size] for one in words(step))
        if fault == "labels":
            labels = torch.where(labels == -100, -100, (labels + 1) % WORDS)
        (world_size * model(ids, labels)).backward()


def some_parts(folder: Path, rank: int, world_size: int, *, lack: bool) -> None:
    """Only rank 0 uses all layers; gradients are reduced explicitly."""
    torch.manual_seed(5)
    model = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
    model.forward = lambda x, parts: sum(model[n](x) for n in parts)  # type: ignore
    optimizer = SGD(model.parameters(), lr=0.1)
    for step in steps(folder, model, optimizer, STEPS):
        made = torch.Generator().manual_seed(90 + step)
        x = torch.randn(BATCH, 6, generator=made)[rank::world_size]
        parts = [0] if lack and rank else [0, 1]
        model(x, parts).square().mean().backward()
        for parameter in model.parameters():
            gradient = parameter.grad
            shared = torch.zeros_like(parameter) if gradient is None else gradient
            dist.all_reduce(shared)
            shared /= world_size
