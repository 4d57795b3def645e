"""Any model on any batches: by ranks, by their replay, by one process.

What the pipeline does with shards on disk, in memory and in seconds, so that a test
can ask for it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from minitrain.core.params import Params
from minitrain.data.batches import Batches, causal_lm_loss
from minitrain.data.cut import CutBatches, count_targets
from minitrain.data.text import VOCAB_SIZE
from minitrain.distributed.launcher import launch
from minitrain.model.factory import build_model
from minitrain.proof.ladder import Ran
from minitrain.proof.replay import BucketLayout, replay
from minitrain.proof.tolerances import Compared
from minitrain.sync.catalog import PLAIN, find_strategy
from minitrain.sync.invariant import shards_of
from minitrain.sync.strategy import DEFAULTS, Strategy, Tuning
from minitrain.testing.keeper import Keeper
from minitrain.train.clock import StepClock, always_plain
from minitrain.train.loop import OPTIMIZERS, TrainResult, mean_losses, train
from minitrain.train.precision import Name, make_precision
from minitrain.train.probe import add_probes, unwatched_gradients
from minitrain.train.recorder import Row, Tensors, recorded_steps
from minitrain.train.rng import Stream, seed_everything, untouched_random_state
from minitrain.train.run import rows_of, shard_batches


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
    sync: type[Strategy]
    optimizer: Literal["adamw", "sgd"]
    learning_rate: float
    steps: int
    seed: int
    tuning: Tuning = DEFAULTS
    grad_accumulation_steps: int = 1
    precision: Name = "float32"
    hash_every: int = 1

    def start(self, rank: int) -> nn.Module:
        """The model as ``rank`` starts it, from the rank's own seed."""
        seed_everything(self.seed + rank)
        return self.factory()

    def make_optimizer(self, sync: Strategy) -> torch.optim.Optimizer:
        """The optimizer, all but the learning rate as torch has it."""
        return sync.optimizer(OPTIMIZERS[self.optimizer], self.learning_rate)

    @property
    def recorded(self) -> set[int]:
        """The steps whose tensors are hashed."""
        return recorded_steps(self.steps, self.hash_every)

    def num_shards(self, world_size: int) -> int:
        """Into how many shards its strategy cuts a batch."""
        return self.sync.num_shards(world_size, self.tuning)

    def cut(self, shards: Sequence[int], count: int) -> CutBatches:
        """The batches of ``shards``, of ``count`` in all."""
        parts = self.grad_accumulation_steps
        return CutBatches(self.batches, shards, count, parts, self.loss, self.count)

    def streams(self, count: int) -> list[Stream]:
        """The random numbers of each shard from the first step on."""
        streams = []
        for shard in range(count):
            self.start(shard)
            streams.append(Stream())
        return streams


def trial_of(params: Params, folder: Path, num_steps: int) -> Trial:
    """What ``params`` train, in memory; ``folder`` is that of a world-1."""
    train = params.train
    one = params.with_train(sync=PLAIN, grad_accumulation_steps=1)
    (batches,) = shard_batches(one, folder, 1)
    return Trial(
        factory=partial(build_model, params.model, VOCAB_SIZE),
        batches=[batches.parts(step)[0].inputs for step in range(num_steps)],
        loss=causal_lm_loss,
        count=count_targets,
        sync=find_strategy(train.sync),
        optimizer=train.optimizer,
        learning_rate=train.learning_rate,
        steps=num_steps,
        seed=train.seed,
        tuning=train,
        grad_accumulation_steps=train.grad_accumulation_steps,
        precision=train.precision,
        hash_every=train.hash_every,
    )


@dataclass
class Outcome:
    """What a way of computing left: of each rank what it knows, its final state, and
    the values of the step that was to be kept.
    """

    results: list[TrainResult]
    states: list[Tensors]
    values: list[dict[str, Any]] = field(default_factory=list)
    start: Tensors = field(default_factory=dict)

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
    sync: Strategy
    batches: Batches
    optimizer: torch.optim.Optimizer


def compared(outcome: Outcome) -> Compared:
    """What rungs against one process look at: the first rank's."""
    kept = outcome.results[0].kept
    return Compared(
        rows=outcome.rows,
        gradients=kept["gradients"],
        early=kept["early"],
        state=outcome.states[0],
        losses=mean_losses(outcome.results),
        start=outcome.start,
    )


def ran(outcome: Outcome) -> Ran:
    """What the ladder looks at."""
    return Ran(outcome.rows, mean_losses(outcome.results), outcome.states)


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
    from minitrain.distributed.groups import distributed

    torch.set_num_threads(1)
    with distributed(timeout_s=max(1, int(timeout_s))) as (rank, world_size):
        count = trial.num_shards(world_size)
        mine = shards_of(rank, world_size, count)
        streams = trial.streams(count) if count != world_size else None
        # it would answer for other rungs: nothing is planted in it
        unwatched = None if plant else _unwatched(trial, rank, trial.cut(mine, count))
        model = trial.start(rank)
        sync = trial.sync(model, trial.tuning)
        batches = trial.cut(mine, count)
        optimizer = trial.make_optimizer(sync)
        seat = Seat(rank, world_size, model, sync, batches, optimizer)
        if plant is not None:
            plant(seat)
        recorder = Keeper(model, trial.recorded, keep)
        precision = make_precision(trial.precision)
        own = None if streams is None else {shard: streams[shard] for shard in mine}
        result = train(
            seat.sync,
            seat.batches,
            seat.optimizer,
            range(trial.steps),
            recorder,
            StepClock(kind_of_step=always_plain),
            precision,
            own,
        )
        seat.sync.finish()
        # copies: what follows may change buffers
        state = {name: t.clone() for name, t in seat.sync.state_dict().items()}
        last = trial.steps - 1
        add_probes(result, seat.sync, seat.batches, last, precision, own)
        result.hashes += [unwatched] if unwatched else []
        seat.sync.close()
        if rank != 0:
            # the same everywhere, as their hashes say
            result.kept = {}
        return result, state, recorder.values


def _unwatched(trial: Trial, rank: int, batches: Batches) -> Row | None:
    precision = make_precision(trial.precision)
    make = partial(trial.start, rank)
    return unwatched_gradients(make, trial.sync, trial.tuning, batches, precision)


def run_replay(
    trial: Trial, run: Outcome, world_size: int, keep: int | None = None
) -> Outcome:
    """Repeat ``run`` in this process, rank after rank."""
    with one_thread(), untouched_random_state():
        count = trial.num_shards(world_size)
        streams = trial.streams(count)
        model = trial.start(0)
        recorder = Keeper(model, trial.recorded, keep)
        results = replay(
            model,
            [trial.cut([shard], count) for shard in range(count)],
            BucketLayout(run.rows, model),
            trial.make_optimizer(Strategy(model, trial.tuning)),
            range(trial.steps),
            recorder,
            streams,
            trial.sync,
            world_size,
            make_precision(trial.precision),
        )
        return Outcome(results, [dict(model.state_dict())], values=[recorder.values])


def run_one_process(
    trial: Trial,
    prepare: Callable[[nn.Module], None] | None = None,
    most_steps: int | None = None,
) -> Outcome:
    """Train in this process on the whole batches; ``prepare`` changes the start,
    ``most_steps`` ends it early.
    """
    with one_thread(), untouched_random_state():
        model = trial.start(0)
        if prepare is not None:
            prepare(model)
        start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        recorder = Keeper(model, trial.recorded, None)
        sync = Strategy(model, trial.tuning)
        result = train(
            sync,
            replace(trial, grad_accumulation_steps=1).cut([0], 1),
            trial.make_optimizer(sync),
            range(min(trial.steps, most_steps or trial.steps)),
            recorder,
            StepClock(kind_of_step=always_plain),
            make_precision(trial.precision),
        )
        return Outcome([result], [dict(model.state_dict())], start=start)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with the one thread that each rank has."""
    # bits depend on the number of threads, and the ranks have one each
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
