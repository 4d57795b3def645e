"""A training loop as a user of torch writes it, whole or with a bug planted in it.

Nothing of minitrain but its process group and the recorder: what data parallelism is
here is torch's own. ``bug`` names the line that is wrong; without one, any number of
ranks compute the same.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    TensorDataset,
)

from minitrain.comm.groups import distributed, wrap_for_ddp
from minitrain.comm.torch_private import GradBucket
from minitrain.recording.recorder import record

STEPS = 12
# from this step on, or at it, where a bug does not begin with the first step
LATER = 3
SAMPLES, FEATURES, CLASSES, GLOBAL_BATCH = 64, 8, 4, 8
STEPS_PER_EPOCH = SAMPLES // GLOBAL_BATCH
VICTIM = 1
IGNORED = -100
Hooked = torch.futures.Future[Tensor]


@dataclass(frozen=True)
class Setting:
    """Options of a clean run; runs with a bug use the defaults."""

    seed: int = 0
    steps: int = STEPS
    batch: int = GLOBAL_BATCH
    passes: int = 1
    dropout: float = 0.0
    autocast: bool = False
    clip: float = 0.0
    warm_up: int = 0
    scaler: bool = False
    adam: bool = False
    norm: bool = False
    every: int = 1
    timeout_s: float = 30.0


class Model(nn.Module):
    """Two layers; batch norm, and a parameter that is not used, where asked for."""

    def __init__(self, norm: bool, dropout: float, spare: bool) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 16)
        self.norm = nn.BatchNorm1d(16) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(16, CLASSES)
        self.spare = nn.Parameter(torch.ones(3)) if spare else None

    def forward(self, features: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.first(features)))
        return self.head(self.dropout(hidden))


def train(folder: Path, bug: str = "", setting: Setting | None = None) -> None:
    """Train as one rank of those that were launched, recorded in ``folder``."""
    with distributed(timeout_s=60) as (rank, world_size):
        run(folder, bug, setting or Setting(), rank, world_size)


def run(folder: Path, bug: str, setting: Setting, rank: int, world_size: int) -> None:
    """The script."""
    torch.manual_seed(setting.seed)
    norm = setting.norm or bug == "buffers_not_synchronized"
    inner = Model(norm, setting.dropout, bug == "unused_parameter")
    model = wrap(inner, bug, rank, world_size)
    kind: Any = torch.optim.AdamW if setting.adam else torch.optim.SGD
    options: dict[str, Any] = {"lr": 0.05} | ({} if setting.adam else {"momentum": 0.9})
    optimizer = kind(inner.parameters(), **options)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1.0, step / setting.warm_up) if setting.warm_up else 1.0,
    )
    scaler = torch.amp.GradScaler("cpu", enabled=setting.scaler)
    if bug == "learning_rate_divided":
        optimizer.param_groups[0]["lr"] /= world_size
    if setting.dropout:
        torch.manual_seed(setting.seed + rank)
    batches = read(bug, rank, world_size, setting)
    recorder = record(
        inner, optimizer, folder, every=setting.every, timeout_s=setting.timeout_s
    )
    fewer = bug == "fewer_batches" and rank == VICTIM
    with recorder:
        for step in range(setting.steps - fewer):
            if bug == "wrapper_made_anew":
                model = wrap(inner, bug, rank, world_size)
            if bug == "optimizer_state_not_restored" and step == LATER:
                optimizer.state.clear()
            if bug == "state_restored_on_one_rank" and step == LATER and rank == VICTIM:
                optimizer.state.clear()
            for number in range(setting.passes):
                features, targets = next(batches)
                called = inner if bug == "wrapper_bypassed" and step >= LATER else model
                last = number == setting.passes - 1
                quiet = not last and bug != "redundant_sync"
                quiet = quiet or (bug == "missing_last_sync" and step == LATER)
                off = quiet and isinstance(model, DistributedDataParallel)
                with model.no_sync() if off else nullcontext():
                    with torch.autocast("cpu", torch.bfloat16, setting.autocast):
                        found = loss(called(features), targets, bug, world_size)
                    scaler.scale(found / setting.passes).backward()
            scaler.unscale_(optimizer)
            clip(inner, bug, setting)
            scaler.step(optimizer)
            scaler.update()
            if bug != "gradients_kept":
                optimizer.zero_grad()
            scheduler.step()


def wrap(inner: nn.Module, bug: str, rank: int, world_size: int) -> nn.Module:
    """``inner`` under DDP, if there are ranks."""
    if world_size == 1:
        return inner
    group = None
    if bug == "group_of_one":
        group = [dist.new_group([one]) for one in range(world_size)][rank]
    # replaced ones are not used: else torch would notice at the second step
    unused = bug == "parameters_replaced"
    model = wrap_for_ddp(inner, group, find_unused_parameters=unused)
    if bug == "buffers_not_synchronized":
        model.broadcast_buffers = False
    if bug == "missing_broadcast" and rank == VICTIM:
        nn.init.normal_(inner.get_parameter("head.weight"))
    if bug == "parameters_replaced":
        # the same numbers, and tensors that DDP does not know
        inner.head = nn.Linear(16, CLASSES)
    if bug in HOOKS:
        model.register_comm_hook([0], HOOKS[bug])
    return model


def loss(found: Tensor, targets: Tensor, bug: str, world_size: int) -> Tensor:
    """The mean over all targets that count, of all ranks."""
    total = nn.functional.cross_entropy(
        found.float(), targets, ignore_index=IGNORED, reduction="sum"
    )
    count = (targets != IGNORED).sum().float()
    if bug == "mean_of_means":
        return total / count
    if world_size > 1:
        dist.all_reduce(count)
    # DDP takes the mean over the ranks
    factor = 8 if bug == "scaled_loss" else 1
    return factor * world_size * total / count


def clip(model: nn.Module, bug: str, setting: Setting) -> None:
    """Clip by the norm of all gradients, or with the bug by another limit per rank."""
    limit = setting.clip
    if bug == "clipped_by_own_norm":
        # as where each holds the norm of what it has
        limit = 1e-3 * (1 + dist.get_rank())
    if limit:
        nn.utils.clip_grad_norm_(model.parameters(), limit)


def read(bug: str, rank: int, world_size: int, setting: Setting) -> Iterator[Any]:
    """Batches of this rank, without end."""
    generator = torch.Generator().manual_seed(7)
    features = torch.randn(SAMPLES, FEATURES, generator=generator)
    targets = torch.randint(CLASSES, (SAMPLES,), generator=generator)
    # ranks have unlike numbers of targets
    targets[::3] = IGNORED
    size = setting.batch // world_size // setting.passes
    if bug == "workers_alike":
        yield from DataLoader(Made(rank), size, num_workers=2)
    seed = 1 if bug == "another_data_seed" and rank == VICTIM else 0
    sampler: DistributedSampler[Any] = DistributedSampler(
        TensorDataset(features), world_size, rank, seed=seed
    )
    if bug == "no_sampler":
        sampler = DistributedSampler(TensorDataset(features), 1, 0)
    epoch = 0
    while True:
        if bug != "missing_set_epoch":
            sampler.set_epoch(epoch)
        for chosen in torch.tensor([*sampler]).split(size):
            if bug == "duplicate_samples" and rank == VICTIM:
                chosen[0] = chosen[1]
            yield features[chosen], targets[chosen]
        epoch += 1


class Made(IterableDataset[Any]):
    """Samples made at random: by the workers of a rank alike."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __iter__(self) -> Iterator[Any]:
        generator = torch.Generator().manual_seed(self.rank)
        while True:
            features = torch.randn(FEATURES, generator=generator)
            yield features, torch.randint(CLASSES, (), generator=generator)


def reduced(bucket: GradBucket, divide: bool = True) -> Hooked:
    """The mean over the ranks, or their sum."""
    world_size = dist.get_world_size() if divide else 1
    work = dist.all_reduce(bucket.buffer().div_(world_size), async_op=True)
    future: Hooked = work.get_future().then(lambda done: done.value()[0])
    return future


def mismatched_bucket_order(state: list[int], bucket: GradBucket) -> Hooked:
    """One rank lays its gradients into the bucket in another order."""
    if dist.get_rank() != VICTIM:
        return reduced(bucket)
    bucket.buffer().copy_(bucket.buffer().flip(0))
    return reduced(bucket).then(lambda future: future.value().flip(0))


def low_precision_reduce(state: list[int], bucket: GradBucket) -> Hooked:
    """Gradients travel in bfloat16."""
    bucket.buffer().copy_(bucket.buffer().bfloat16())
    return reduced(bucket).then(lambda future: future.value().bfloat16().float())


def averaged_twice(state: list[int], bucket: GradBucket) -> Hooked:
    """Divided before the sum, and after it."""
    return reduced(bucket).then(lambda future: future.value() / dist.get_world_size())


def lose(state: list[int], bucket: GradBucket, to_one: bool) -> Hooked:
    """At step LATER, the gradients of one rank are lost, or the sum does not reach that
    rank.
    """
    lost = state[0] == LATER and dist.get_rank() == VICTIM
    state[0] += 1
    mine = bucket.buffer() / dist.get_world_size()
    if lost and not to_one:
        bucket.buffer().zero_()
    done = reduced(bucket)
    return done.then(lambda future: mine) if lost and to_one else done


HOOKS: dict[str, Any] = {
    "sum_for_mean": lambda state, bucket: reduced(bucket, divide=False),
    "mismatched_bucket_order": mismatched_bucket_order,
    "low_precision_reduce": low_precision_reduce,
    "averaged_twice": averaged_twice,
    "transfer_lost": lambda state, bucket: lose(state, bucket, to_one=False),
    "transfer_lost_to_one": lambda state, bucket: lose(state, bucket, to_one=True),
}
