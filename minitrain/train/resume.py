"""Bit-exact resume of an interrupted run.

Before a run continues from a checkpoint, it repeats the run's first steps. That
restores the order of DDP's buckets, which cannot be saved and affects the bits with
three or more ranks. It also checks that this machine computes the same bits in these
steps: the checkpoint holds hashes of their results.
"""

import json
from pathlib import Path

from minitrain.comm.collective_calls import everyone
from minitrain.comm.groups import is_main_process
from minitrain.core.printable import note
from minitrain.core.progress import progress
from minitrain.train.checkpoint import Checkpoints, Kept, load_rank, step_of
from minitrain.train.loop import train
from minitrain.train.worker import REPEATED, Worker

OTHER_BITS = (
    "from here on not the bits of an undisturbed run: with other numbers of ranks each "
    "adds up the gradients of other samples (train.sync: invariant keeps the bits)"
)
NOT_SHARED = (
    "no checkpoints: not every host sees the folder of rank 0; a run that is "
    "interrupted starts again"
)
UNFIT = "cannot be loaded in this run"
NOT_USED = (
    "does not have the bits of the first steps, which were repeated; the run starts "
    "again"
)


def run_through(
    worker: Worker,
    steps: int,
    checkpoints: Checkpoints | None = None,
    *,
    show: str = "",
) -> int:
    """Train ``worker``, which has made no step, for ``steps`` steps in all, from the
    newest checkpoint on, if any. ``show``: name of a progress bar; empty for none.
    Return the step of the checkpoint that the run continued from, else 0. Collective.

    Raises:
        UserError: A loss is not finite, the disk is full, or another process trains
            this run.
        OSError: A checkpoint cannot be written.
    """
    if checkpoints is not None and not checkpoints.begin():
        _say(show, NOT_SHARED)
        checkpoints = None
    done = went_on_from = 0
    if checkpoints is not None:
        done, went_on_from = _resume(worker, checkpoints, steps, show)
    left = range(done, steps)
    for step in progress(left, show, total=steps, show=bool(show), initial=done):
        train(worker, [step])
        after = step + 1
        # not after the last step: its results are written right after it
        if checkpoints is not None and after % checkpoints.every == 0 and after < steps:
            checkpoints.save(after, worker.kept())
    return went_on_from


def _resume(
    worker: Worker, checkpoints: Checkpoints, steps: int, show: str
) -> tuple[int, int]:
    # returns the number of steps done, and the step of the checkpoint, else 0
    done, below = 0, None
    # a checkpoint of fewer steps than were repeated by then is of no use
    while (found := checkpoints.newest(below)) and step_of(found) >= done:
        step = below = step_of(found)
        first, done = done, max(done, min(REPEATED, step))
        train(worker, range(first, done))
        kept, same = _load(found, worker.kept())
        if None in same:
            _say(show, f"checkpoint not used: {found}: {UNFIT}")
            continue
        if checkpoints.same_bits and not all(same):
            _say(show, f"checkpoint not used: {found}: {NOT_USED}")
            break
        if not checkpoints.same_bits:
            _say(show, OTHER_BITS)
        worker.restore(kept)
        _say(show, f"going on from step {step} of {steps}")
        return step, step
    return done, 0


def _load(found: Path, own: Kept) -> tuple[Kept, list[bool | None]]:
    # returns the state, and by rank whether its first steps have the rows of the
    # checkpoint; None if the state does not fit this model or cannot be loaded
    kept: Kept = {}

    def load() -> bool | None:
        try:
            kept.update(load_rank(found))
            rows, before = (json.loads(one["seen"])["rows"] for one in (own, kept))
            shapes, others = (
                {name: tensor.shape for name, tensor in one["model"].items()}
                for one in (own, kept)
            )
            return bool(rows == before[: len(rows)]) if shapes == others else None
        except OSError:
            raise
        except Exception:
            # torch has many kinds of errors, such as for an object of a user's strategy
            return None

    return kept, everyone(load)


def _say(show: str, line: str) -> None:
    if is_main_process():
        note(f"{show}: {line}" if show else line)
