"""Runs that a check compares: all ranks, their replay, and one process."""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

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
from minitrain.train.worker import Worker

# smaller files are read, since a process can map only some ten thousand files
LEAST_MAPPED_BYTES = 1 << 16


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


class SavedTensors(dict[str, Tensor]):
    """Dictionary that stays empty: setting a tensor saves it to a file in ``folder``,
    as pickling the record of a large model needs three times its memory. ``files``:
    paths by key. With ``folder`` None, tensors are dropped.
    """

    def __init__(self, folder: Path | None) -> None:
        super().__init__()
        self._folder = folder
        if folder is not None:
            folder.mkdir()
        self.files: dict[str, str] = {}

    def __setitem__(self, key: str, tensor: Tensor) -> None:
        if self._folder is not None:
            file = self._folder / f"{len(self.files)}.pt"
            with writing(file):
                one = tensor.detach().cpu()
                # of a view, torch.save() stores the whole storage
                is_view = one.untyped_storage().nbytes() != one.nbytes
                torch.save(one.clone() if is_view else one, file)
            self.files[key] = str(file)


def mapped(files: Mapping[str, str]) -> dict[str, Tensor]:
    """Load tensors from ``files`` (paths by name). Large ones are memory-mapped; they
    stay valid after the files are removed.
    """
    found = {}
    for name, file in files.items():
        is_large = Path(file).stat().st_size >= LEAST_MAPPED_BYTES
        found[name] = torch.load(file, mmap=is_large, weights_only=True)
    return found


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
        for one in finished:
            one.sampled = mapped(cast(Any, one.sampled))
            one.state = mapped(cast(Any, one.state))
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
    """Train as one rank; return tensors as the names of files in ``folder``."""
    torch.set_num_threads(1)
    limit = max(1, int(timeout_s))
    with distributed(timeout_s=limit) as (rank, _):
        # equal on all ranks, as their hashes show, so rank 0 alone saves them
        sampled = SavedTensors(None if rank else folder / "sampled")

        def observer(worker: Worker) -> StepObserver:
            observed = StepObserver(worker, keep=keep)
            observed.recorder.sampled = observed.result.sampled = sampled
            return observed

        own = forward_collectives(config)
        show = "" if rank else show
        finished = run_rank(config, observer=observer, inject=inject, show=show)
        finished.hashes += own
        state = SavedTensors(folder / f"state-{rank}")
        for name, tensor in finished.state.items():
            state[name] = tensor
        finished.state = cast(Any, state.files)
        finished.sampled = cast(Any, sampled.files)
        return finished


# repeat a run; train one process with whole batches, and from weights one unit away
run_replay = alone()(replay)
run_alone = alone()(runs.run_one_process)
run_twin = alone()(runs.run_twin)


def in_memory_of(config: RunConfig) -> InMemory:
    """Return the batches of a check, which are always in memory."""
    assert isinstance(config.data, InMemory)
    return config.data
