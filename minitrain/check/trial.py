"""Runs that a check compares: all ranks, their replay, and one process."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from minitrain.bench.ledger import forward_collectives
from minitrain.comm.groups import distributed
from minitrain.core.files import writing
from minitrain.data.cut import InMemory
from minitrain.harness.launcher import launch
from minitrain.harness.run_dir import private_folder
from minitrain.proof import runs
from minitrain.proof.evidence import Evidence, evidence_of
from minitrain.proof.replay import replay
from minitrain.train.config import RunConfig
from minitrain.train.observer import StepObserver
from minitrain.train.rng import untouched_random_state
from minitrain.train.run import Inject, run_rank
from minitrain.train.step_record import TrainResult


@contextmanager
def alone(threads: int | None = 1) -> Iterator[None]:
    """Context manager and decorator: run the body in a process group of one rank, with
    ``threads`` threads (default: as each rank; None: unchanged); restore the number of
    threads and the random state afterwards.
    """
    usual = torch.get_num_threads()
    with ExitStack() as group, untouched_random_state():
        # a model may call collectives, which are the identity in a world of one
        if not dist.is_initialized() and "RANK" not in os.environ:
            group.enter_context(distributed())
        try:
            # bits depend on the number of threads
            torch.set_num_threads(threads or usual)
            yield
        finally:
            torch.set_num_threads(usual)


def run_ranks(
    config: RunConfig,
    world_size: int,
    inject: Inject | None = None,
    keep: int | None = None,
    timeout_s: float = 300,
    show: str = "",
) -> Evidence:
    """Train in ``world_size`` processes over gloo and return the evidence. ``keep``: a
    step whose tensors are returned in ``values``. ``show``: title of a progress bar, ""
    for none. Raises RankError for a process that fails or takes too long.
    """
    with private_folder() as folder:
        finished: list[TrainResult] = launch(
            *(_be_a_rank, world_size, config, inject, keep, timeout_s, folder, show),
            timeout_s=timeout_s,
        )
        for rank, one in enumerate(finished):
            # mapped, which saves memory, and valid after the file is removed
            saved = torch.load(folder / f"{rank}.pt", mmap=True, weights_only=True)
            one.sampled, one.state = saved
    return evidence_of(
        finished,
        [one.state for one in finished],
        values=[one.values for one in finished],
    )


def _be_a_rank(
    config: RunConfig,
    inject: Inject | None,
    keep: int | None,
    timeout_s: float,
    folder: Path,
    show: str,
) -> TrainResult:
    # train as one rank; save its tensors, which would need much memory in a pickle
    torch.set_num_threads(1)
    limit = max(1, int(timeout_s))
    with distributed(timeout_s=limit) as (rank, _):
        own, show = forward_collectives(config), "" if rank else show
        observer = partial(StepObserver, keep=keep)
        finished = run_rank(config, observer=observer, inject=inject, show=show)
        finished.hashes += own
        # equal on all ranks, as their hashes show, so rank 0 alone saves them
        sampled = {} if rank else finished.sampled
        file = folder / f"{rank}.pt"
        with writing(file):
            torch.save((sampled, finished.state), file)
        return replace(finished, sampled={}, state={})


# repeat a run; train one process with whole batches, and from weights one unit away
run_replay = alone()(replay)
run_alone = alone()(runs.run_one_process)
run_twin = alone()(runs.run_twin)


def in_memory_of(config: RunConfig) -> InMemory:
    """Return the batches of a check, which are always in memory."""
    assert isinstance(config.data, InMemory)
    return config.data
