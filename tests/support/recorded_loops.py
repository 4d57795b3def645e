"""Small training loops as users write them, for recordings in tests."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

import minitrain
from minitrain.recording.format import Row, read_recording

NUM_STEPS = 8


class Net(nn.Module):
    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, 16), nn.BatchNorm1d(16)
        self.drop, self.last = nn.Dropout(dropout), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(self.norm(self.first(x).relu()))).squeeze(-1)


def plain() -> nn.Module:
    """Without buffers, which are not broadcast if parameters are sharded."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0))


def batch(step: int, rank: int = 0, micro: int = 0, size: int = 5) -> Tensor:
    seed = 1000 * step + 10 * rank + micro
    return torch.randn(size, 6, generator=torch.Generator().manual_seed(seed))


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) - x.sum(-1)).square().mean()


def steps_of(folder: Path, rank: int = 0, optimizer: int = 0) -> list[Row]:
    steps = read_recording(folder).ranks[rank].steps
    return [row for (number, _), row in steps.items() if number == optimizer]


def loop(
    model: nn.Module,
    optimizer: Optimizer,
    num_steps: int = NUM_STEPS,
    *,
    rank: int = 0,
    micro: int = 1,
    after: Callable[[int], None] = lambda step: None,
) -> None:
    """``micro`` batches a step, of which the last synchronizes; clipped."""
    for step in range(num_steps):
        for number in range(micro):
            last = number == micro - 1
            waits = not last and hasattr(model, "no_sync")
            with model.no_sync() if waits else nullcontext():
                (loss_of(model, batch(step, rank, number)) / micro).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        after(step)


def steps(
    folder: Path,
    model: nn.Module,
    optimizer: Optimizer | None = None,
    num_steps: int = NUM_STEPS,
    **options: Any,
) -> Iterator[int]:
    """Recorded steps of ``model``, which the optimizer (None: SGD) makes after the body
    of each.
    """
    optimizer = optimizer or SGD(model.parameters(), lr=0.01)
    with minitrain.record(model, optimizer, folder, **{"every": 1} | options):
        for step in range(num_steps):
            yield step
            optimizer.step()
            optimizer.zero_grad()


def record_loop(
    folder: Path,
    model: nn.Module,
    optimizer: Optimizer | None = None,
    num_steps: int = NUM_STEPS,
    **options: Any,
) -> list[Row]:
    """Record :func:`loop` with the optimizer (None: SGD), and return its steps."""
    optimizer = optimizer or SGD(model.parameters(), lr=0.1)
    with minitrain.record(model, optimizer, folder, **options):
        loop(model, optimizer, num_steps)
    return steps_of(folder)


def state_bytes(model: nn.Module, optimizer: Optimizer) -> list[bytes]:
    """Every bit that a run ends with, random numbers too."""
    moments = [t for s in optimizer.state.values() for t in s.values()]
    tensors = [*model.state_dict().values(), *moments, torch.get_rng_state()]
    return [t.detach().numpy().tobytes() for t in map(torch.as_tensor, tensors)]
