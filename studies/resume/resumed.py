"""Resume of an interrupted run, and its differences from an uninterrupted one.

Compares hashes computed here, independent of those in checkpoints.
"""

import hashlib
import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minitrain.comm.collective_calls import only_first
from minitrain.comm.groups import distributed, is_main_process
from minitrain.data.cut import bytes_of
from minitrain.harness.launcher import launch
from minitrain.train.checkpoint import Checkpoints
from minitrain.train.config import RunConfig
from minitrain.train.observer import watches_parts
from minitrain.train.run import run_rank
from minitrain.train.step_record import TrainResult

# special stop: never stopped, but saved after every step
UNDISTURBED, SAVING = -1, 0
NEVER = 10**9


@dataclass(frozen=True)
class Left:
    """Output of one rank: the SHA-256 of each kind of evidence (:func:`kinds`), the
    step from which it resumed, and what it printed.
    """

    kinds: Mapping[str, str]
    went_on_from: int
    said: str


def kinds(result: TrainResult) -> dict[str, str]:
    """Return the SHA-256 of each kind of evidence after the last step; of times, only
    which steps were timed.
    """
    return {
        "states": _of_tensors(result.state),
        # written by rank 0 only
        "sampled": _of_tensors(result.sampled if is_main_process() else {}),
        "losses": _of_text([loss.hex() for part in result.losses for loss in part]),
        "ledger": _of_text(result.digests),
        "hashes": _of_text(result.hashes),
        "probes": _of_text(result.probes),
        "timed steps": _of_text([row["step"] for row in result.timings]),
    }


def differing(ranks: Sequence[Left], undisturbed: Sequence[Left]) -> list[str]:
    """Return the kinds of evidence that differ between two sets of ranks."""
    pairs = [*zip(ranks, undisturbed, strict=True)]
    names = undisturbed[0].kinds
    return [n for n in names if any(a.kinds[n] != b.kinds[n] for a, b in pairs)]


def run_stopped(
    config: RunConfig,
    world_size: int,
    folder: Path,
    stops: Sequence[int],
    spoil: Callable[[], None] | None = None,
    each_s: float = 60,
) -> list[list[Left]]:
    """Resume after each of ``stops`` in one set of ``world_size`` new processes;
    returns the output of the ranks by stop.

    A stop is a number of steps; the run resumes from the checkpoint after that many
    steps, which a run with the stop SAVING has left in ``folder``. ``spoil`` is called
    in every process before. Raises RankError if one fails, or all take more than
    ``each_s`` seconds per stop, plus three stops' time for the start.
    """
    limit = each_s * (3 + len(stops))
    ranks = launch(
        _be_a_rank, world_size, config, folder, stops, spoil, timeout_s=limit
    )
    return [list(one) for one in zip(*ranks, strict=True)]


def _be_a_rank(
    config: RunConfig,
    folder: Path,
    stops: Sequence[int],
    spoil: Callable[[], None] | None,
) -> list[Left]:
    torch.set_num_threads(1)
    if spoil is not None:
        spoil()
    with distributed():
        return [_go_on(config, folder, stop) for stop in stops]


def _go_on(config: RunConfig, folder: Path, stop: int) -> Left:
    checkpoints = None
    if stop == SAVING:
        checkpoints = Checkpoints(folder / "all", {}, every=1, keep=config.steps)
    elif stop != UNDISTURBED:
        only_first(partial(_alone, folder, stop))
        checkpoints = Checkpoints(folder / f"{stop}", {}, every=NEVER, keep=1)
    with redirect_stderr(io.StringIO()) as said:
        finished = run_rank(config, observer=watches_parts, checkpoints=checkpoints)
    return Left(kinds(finished), finished.went_on_from, said.getvalue())


def _alone(folder: Path, stop: int) -> None:
    """Make a folder with only the checkpoint after ``stop`` steps."""
    (folder / f"{stop}").mkdir(exist_ok=True)
    name = f"step-{stop}"
    if not (folder / f"{stop}" / name).exists():
        os.symlink(Path("..") / "all" / name, folder / f"{stop}" / name)


def _of_tensors(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(bytes_of(tensor))
    return digest.hexdigest()


def _of_text(values: Any) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()
