"""Any model on any batches: by ranks, by their replay, by one process.

What the pipeline does with shards on disk, in memory and in seconds, so that a test
can ask for it.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from minitrain.batches import Batch, Batches
from minitrain.clock import StepClock
from minitrain.hashes import Recorder, Row, Tensors
from minitrain.launcher import launch
from minitrain.randomness import Stream, seed_everything, untouched_random_state
from minitrain.replay import BucketLayout, replay
from minitrain.run import rows_of
from minitrain.sync import GradientSync
from minitrain.sync.stock import NoSync
from minitrain.training import TrainResult, train

OPTIMIZERS = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


@dataclass(frozen=True)
class Trial:
    """What is tried; it travels to the ranks.

    ``batches`` are global batches, step by step, taken again from the first when they
    end: tensors, or lists, tuples and mappings of tensors that are cut along their
    first dimension. ``loss`` gives the mean over the targets of such a (part of a)
    batch, ``count`` how many these are.
    """

    factory: Callable[[], nn.Module]
    batches: Sequence[Any]
    loss: Callable[[nn.Module, Any], Tensor]
    count: Callable[[Any], int]
    sync: Callable[[nn.Module], GradientSync]
    optimizer: Literal["adamw", "sgd"]
    learning_rate: float
    steps: int
    seed: int

    def start(self, rank: int) -> nn.Module:
        """The model as ``rank`` starts it, from the rank's own seed."""
        seed_everything(self.seed + rank)
        return self.factory()

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer, all but the learning rate as torch has it."""
        kind = OPTIMIZERS[self.optimizer]
        return kind(model.parameters(), lr=self.learning_rate)


class CutBatches:
    """The part of ``rank``: every W-th sample of each global batch, from r on."""

    def __init__(self, trial: Trial, rank: int, world_size: int) -> None:
        self._trial, self._rank, self.world_size = trial, rank, world_size

    def batch(self, step: int) -> Batch:
        """See :class:`~minitrain.batches.Batches`."""
        whole = self._trial.batches[step % len(self._trial.batches)]
        part = cut(whole, self._rank, self.world_size)
        return Batch(
            step=step,
            inputs=part,
            num_targets=self._trial.count(part),
            global_targets=self._trial.count(whole),
            digests=tuple(_digests(part)),
        )

    def loss(self, model: nn.Module, inputs: Any) -> Tensor:
        """See :class:`~minitrain.batches.Batches`."""
        return self._trial.loss(model, inputs)


def cut(batch: Any, rank: int, world_size: int) -> Any:
    """Every ``world_size``-th sample of all tensors in ``batch``, from ``rank`` on."""
    if isinstance(batch, Tensor):
        return batch[rank::world_size]
    if isinstance(batch, Mapping):
        return {key: cut(value, rank, world_size) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch)([cut(value, rank, world_size) for value in batch])
    return batch


def tensors_of(batch: Any) -> list[Tensor]:
    """All tensors in ``batch``."""
    if isinstance(batch, Tensor):
        return [batch]
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        return [tensor for value in batch for tensor in tensors_of(value)]
    return []


def _digests(part: Any) -> Iterator[int]:
    for sample in zip(*tensors_of(part), strict=True):
        digest = hashlib.sha256()
        for tensor in sample:
            flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            digest.update(flat.numpy().tobytes())
        yield int.from_bytes(digest.digest())


class Keeper(Recorder):
    """Records every step, and keeps the values of step ``step`` for the locator."""

    def __init__(self, model: nn.Module, num_steps: int, step: int | None) -> None:
        super().__init__(model, range(num_steps))
        self._keep = step
        self.values: dict[str, Any] = {}

    def own_gradients(self, step: int, gradients: Sequence[Tensors]) -> None:
        if step == self._keep:
            self.values["own"] = [dict(own) for own in gradients]

    def gradients(self, step: int) -> None:
        super().gradients(step)
        if step == self._keep:
            named = list(self._model.named_parameters())
            grads = {n: p.grad.clone() for n, p in named if p.grad is not None}
            self.values["gradients"] = grads
            self.values["before"] = {n: p.detach().clone() for n, p in named}

    def state(self, step: int) -> None:
        super().state(step)
        if step == self._keep:
            named = self._model.named_parameters()
            self.values["after"] = {n: p.detach().clone() for n, p in named}


@dataclass
class Outcome:
    """What a way of computing left: of each rank what it knows, its final state, and
    the values of the step that was to be kept.
    """

    results: list[TrainResult]
    states: list[Tensors]
    values: list[dict[str, Any]] = field(default_factory=list)

    @cached_property
    def rows(self) -> list[Row]:
        """The rows of all ranks, and the data ledger."""
        return rows_of(self.results)


@dataclass
class Seat:
    """What a rank trains with; a planted fault spoils it before the first step."""

    rank: int
    world_size: int
    model: nn.Module
    sync: GradientSync
    batches: Batches
    optimizer: torch.optim.Optimizer


Plant = Callable[[Seat], None]


def run_ranks(
    trial: Trial,
    world_size: int,
    plant: Plant | None = None,
    keep: int | None = None,
    timeout_s: float = 300,
) -> Outcome:
    """Train in ``world_size`` processes over gloo; ``plant`` spoils each of them."""
    answers = launch(
        _be_a_rank, world_size, trial, plant, keep, timeout_s, timeout_s=timeout_s
    )
    results, states, values = zip(*answers, strict=True)
    return Outcome(list(results), list(states), values=list(values))


def _be_a_rank(
    trial: Trial, plant: Plant | None, keep: int | None, timeout_s: float
) -> tuple[TrainResult, Tensors, dict[str, Any]]:
    from minitrain.ddp import distributed

    torch.set_num_threads(1)
    with distributed(timeout_s=max(1, int(timeout_s))) as (rank, world_size):
        model = trial.start(rank)
        seat = Seat(
            rank,
            world_size,
            model,
            trial.sync(model),
            CutBatches(trial, rank, world_size),
            trial.make_optimizer(model),
        )
        if plant is not None:
            plant(seat)
        recorder = Keeper(model, trial.steps, keep)
        result = train(
            model,
            seat.sync,
            seat.batches,
            seat.optimizer,
            range(trial.steps),
            recorder,
            StepClock(kind_of_step=lambda step: "plain"),
        )
        seat.sync.finish()
        return result, dict(model.state_dict()), recorder.values


def run_replay(
    trial: Trial, run: Outcome, world_size: int, keep: int | None = None
) -> Outcome:
    """Repeat ``run`` in this process, rank after rank."""
    with _one_thread(), untouched_random_state():
        streams = []
        for rank in range(world_size):
            trial.start(rank)
            streams.append(Stream())
        model = trial.start(0)
        ranks = [CutBatches(trial, rank, world_size) for rank in range(world_size)]
        recorder = Keeper(model, trial.steps, keep)
        results = replay(
            model,
            ranks,
            BucketLayout(_layout(trial, run)),
            trial.make_optimizer(model),
            range(trial.steps),
            recorder,
            streams,
        )
        return Outcome(results, [dict(model.state_dict())], values=[recorder.values])


def run_one_process(
    trial: Trial, prepare: Callable[[nn.Module], None] | None = None
) -> Outcome:
    """Train in this process on the whole batches; ``prepare`` changes the start."""
    with _one_thread(), untouched_random_state():
        model = trial.start(0)
        if prepare is not None:
            prepare(model)
        recorder = Keeper(model, trial.steps, None)
        result = train(
            model,
            NoSync(model),
            CutBatches(trial, 0, 1),
            trial.make_optimizer(model),
            range(trial.steps),
            recorder,
            StepClock(kind_of_step=lambda step: "plain"),
        )
        return Outcome([result], [dict(model.state_dict())])


def _layout(trial: Trial, run: Outcome) -> list[Row]:
    layout = [row for row in run.rows if row["kind"] == "buckets"]
    if layout:
        return layout
    # nothing was reduced, which a rung of its own says: the replay has one bucket
    names = [name for name, p in trial.factory().named_parameters() if p.requires_grad]
    return [{"kind": "buckets", "step": 0, "buckets": [{"parameters": names}]}]


@contextmanager
def _one_thread() -> Iterator[None]:
    # bits depend on the number of threads, and the ranks have one each
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
