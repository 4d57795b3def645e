"""Arms: without checkpoints (twice), minitrain's, and torch's with equal content."""

import json
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from checkpoints_settings import Checkpoints as Study
from saving import Save, Saves
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from minitrain.bench.arms import Arm
from minitrain.core.params import Params
from minitrain.train.checkpoint import Checkpoints, Kept
from minitrain.train.config import RunConfig, config_of
from minitrain.train.identity import identity_of
from minitrain.train.observer import watches_parts
from minitrain.train.worker import Worker

# number of newest checkpoints kept for each arm
KEEP = 2


def arms_of(params: Params, study: Study, shards: Path, folder: Path) -> list[Arm]:
    size, first = study.world_size, study.every_steps[0]
    arm = partial(Saves, processes=size, threads=1)
    seen = seen_after(study.recorded_steps, config_of(params, shards, size))
    arms: list[Arm] = [Arm(name, size, 1) for name in ("none", "none again")]
    for every in study.every_steps:
        own = checkpoints_of(params, shards, folder, every)
        start = partial(getattr, own, "save")
        arms.append(arm(own.folder.name, every=every, start=start, seen=seen))
    for name, beside in (("torch", False), ("torch asynchronous", True)):
        name += f", every {first}"
        start = partial(by_torch, folder / name, beside)
        arms.append(arm(name, every=first, start=start, seen=seen))
    return arms


def seen_after(steps: int, config: RunConfig) -> Callable[[], str]:
    worker = Worker(config)
    worker.observer = observer = watches_parts(worker)
    worker.train(range(steps))
    worker.close()
    # serialized for every checkpoint, as in a run
    return lambda: json.dumps(observer.kept())


def checkpoints_of(
    params: Params, shards: Path, folder: Path, every: int
) -> Checkpoints:
    identity = identity_of(params, shards, "study", dist.get_world_size())
    return Checkpoints(folder / f"ours, every {every}", identity, every, KEEP)


def by_torch(folder: Path, beside: bool) -> Save:
    # a separate group, since its collectives can run concurrently with those of
    # training
    group: Any = dist.new_group(backend="gloo")

    def begin(step: int, kept: Kept) -> Future[Any] | None:
        to = FileSystemWriter(folder / f"{step}")
        under_way: Any = None
        if beside:
            under_way = async_save(shared(kept), storage_writer=to, process_group=group)
        else:
            save(shared(kept), storage_writer=to, process_group=group)
        if dist.get_rank() == 0:
            shutil.rmtree(folder / f"{step - KEEP}", ignore_errors=True)
        return under_way

    return begin


def shared(kept: Kept) -> dict[str, Any]:
    """Return the same content in torch's format, which stores shared entries once."""
    alike = {name: kept[name] for name in ("model", "optimizer")}
    own = {name: value for name, value in kept.items() if name not in alike}
    return {**alike, f"rank-{dist.get_rank()}": own}
