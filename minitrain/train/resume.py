"""Bit-exact resume of an interrupted run.

It repeats its first steps before it goes on from a checkpoint. That restores what
cannot be saved: the order of DDP's buckets, which decides bits from three ranks on. And
it shows whether this machine computes the bits of the checkpoint, which has their
hashes.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minitrain.comm.groups import is_main_process
from minitrain.comm.heartbeat import my_heartbeat
from minitrain.comm.together import everyone
from minitrain.core.errors import UserError
from minitrain.core.printable import note
from minitrain.core.progress import progress
from minitrain.train.checkpoint import Checkpoints, Kept, load_rank, step_of
from minitrain.train.loop import train
from minitrain.train.rng import random_state, restore_random_state
from minitrain.train.worker import Worker

# as many as are recorded anyway
REPEATED = 3
OTHER_BITS = (
    "from here on not the bits of an undisturbed run: each of another number of ranks "
    "adds up the gradients of other samples (train.sync: invariant keeps the bits)"
)
NOT_SHARED = (
    "no checkpoints: not every host sees the folder of rank 0; a run that is "
    "interrupted starts again"
)
NOT_USED = (
    "checkpoint not used: the first steps, made again, have other bits than those that "
    "stand in it"
)
UNFIT = "checkpoint not used: {}: cannot be restored in this run"


def run_through(
    subject: "RankInSteps",
    steps: int,
    checkpoints: Checkpoints | None = None,
    *,
    show: str = "",
) -> int:
    """Let ``subject`` compute ``steps`` steps, from the newest checkpoint on, if any.
    Returns the step of that, else 0. Collective. ``show`` names a progress bar. Raises
    OSError where a checkpoint cannot be written.
    """
    if checkpoints is not None and not checkpoints.begin():
        _say(show, NOT_SHARED)
        checkpoints = None
    done = went_on_from = 0
    if checkpoints is not None:
        done, went_on_from = _go_on(subject, checkpoints, steps, show)
    left = range(done, steps)
    for step in progress(left, show, total=steps, show=bool(show), initial=done):
        subject.run([step])
        after = step + 1
        # not after the last step: what it led to is written right after it
        if checkpoints is not None and after % checkpoints.every == 0 and after < steps:
            checkpoints.save(after, subject.kept())
    return went_on_from


def _go_on(
    subject: "RankInSteps", checkpoints: Checkpoints, steps: int, show: str
) -> tuple[int, int]:
    # how many steps are done, and for how many of them a checkpoint stands
    done, below = 0, None
    # one of fewer steps than are made again by then is of no use
    while (found := checkpoints.newest(below)) and step_of(found) >= done:
        step = below = step_of(found)
        first, done = done, max(done, min(REPEATED, step))
        subject.run(range(first, done))
        kept, same = _load(found, subject.kept())
        if None not in same:
            break
        _say(show, UNFIT.format(found))
    else:
        return done, 0
    if checkpoints.same_bits and not all(same):
        _say(show, NOT_USED)
        return done, 0
    if not checkpoints.same_bits:
        _say(show, OTHER_BITS)
    subject.restore(kept)
    _say(show, f"going on from step {step} of {steps}")
    return step, step


def _load(found: Path, own: Kept) -> tuple[Kept, list[bool | None]]:
    # and by rank: whether its steps are recorded alike; None if it cannot be restored
    kept: Kept = {}

    def load() -> bool | None:
        try:
            kept.update(load_rank(found))
            rows, before = (json.loads(one["seen"])["rows"] for one in (own, kept))
            fits = _layout(own) == _layout(kept)
            return bool(rows == before[: len(rows)]) if fits else None
        except (UserError, OSError):
            raise
        except Exception:
            # torch has many kinds of errors for it
            return None

    return kept, everyone(load)


def _layout(kept: Kept) -> tuple[Any, ...]:
    tensors = kept["model"].items()
    return {*kept}, {name: (one.shape, one.dtype) for name, one in tensors}


def _say(show: str, line: str) -> None:
    if is_main_process():
        note(f"{show}: {line}" if show else line)


@dataclass
class RankInSteps:
    """A worker whose training can be interrupted between two steps."""

    worker: Worker

    def run(self, steps: Iterable[int]) -> None:
        """Train for ``steps``."""
        train(self.worker, steps)

    def kept(self) -> Kept:
        """Return all that later steps depend on: views of the worker's tensors, of
        shared ones this rank's part.
        """
        my_heartbeat().enter("checkpoint")
        worker = self.worker
        sync, streams = worker.sync, worker.streams or {}
        return {
            "model": _tensors_of(worker.model),
            "optimizer": _local(sync.optimizer_state(worker.optimizer)),
            "precision": worker.precision.state(),
            "sync": sync.kept(),
            "random": random_state(),
            "streams": {shard: stream.state for shard, stream in streams.items()},
            "seen": json.dumps(worker.observer.kept()),
            "sampled": _later(worker.observer.sampled()),
        }

    def restore(self, kept: Kept) -> None:
        """Put back what :meth:`kept` took out, into a worker that has made a step."""
        worker, sync = self.worker, self.worker.sync
        with torch.no_grad():
            for name, tensor in _tensors_of(worker.model).items():
                tensor.copy_(kept["model"][name])
        sync.restore_optimizer(worker.optimizer, kept["optimizer"])
        worker.precision.restore(kept["precision"])
        sync.restore(kept["sync"])
        worker.model.zero_grad()
        worker.observer.restore(json.loads(kept["seen"]))
        worker.observer.sampled().update(kept["sampled"])
        for shard, stream in (worker.streams or {}).items():
            stream.state = kept["streams"][shard]
        # a rank that was not there has its own, from its start
        if kept["random"] is not None:
            restore_random_state(kept["random"])


def _later(sampled: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # the first steps, "early" among them, a resumed run computes again
    first = {"early", *map(str, range(REPEATED))}
    return {k: sampled[k] for k in sampled if k.partition("/")[0] not in first}


def _tensors_of(model: torch.nn.Module) -> dict[str, Tensor]:
    # a state dict lacks buffers that are not persistent
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: _local(tensor.detach()) for name, tensor in named.items()}


def _local(value: Any) -> Any:
    # this rank's part in the place of tensors that ranks share
    if isinstance(value, Mapping):
        return {key: _local(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_local(one) for one in value]
    part = getattr(value, "to_local", None)
    return value if part is None else part()
