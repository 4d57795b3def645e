"""Bit-exact resume of an interrupted run.

Before a run continues from a checkpoint, it repeats its first steps. That restores what
cannot be saved: the order of DDP's buckets, which decides bits from three ranks on. And
it shows whether this machine computes the bits of the checkpoint, which has their
hashes.
"""

import json
from pathlib import Path

from minitrain.comm.groups import is_main_process
from minitrain.comm.together import everyone
from minitrain.core.printable import note
from minitrain.core.progress import progress
from minitrain.train.checkpoint import Checkpoints, Kept, load_rank, step_of
from minitrain.train.loop import train
from minitrain.train.worker import REPEATED, Worker

OTHER_BITS = (
    "from here on not the bits of an undisturbed run: each of another number of ranks "
    "adds up the gradients of other samples (train.sync: invariant keeps the bits)"
)
NOT_SHARED = (
    "no checkpoints: not every host sees the folder of rank 0; a run that is "
    "interrupted starts again"
)
NOT_USED = (
    "checkpoint not used: it cannot be loaded, or does not have the bits of the first "
    "steps, which were repeated; the run starts again"
)


def run_through(
    worker: Worker,
    steps: int,
    checkpoints: Checkpoints | None = None,
    *,
    show: str = "",
) -> int:
    """Train ``worker`` for ``steps`` steps, from the newest checkpoint on, if any.
    Collective.

    Args:
        worker: A worker that has made no step.
        steps: Number of steps of the whole run.
        checkpoints: Those to continue from, and to write.
        show: Name of a progress bar; empty for none.

    Returns:
        The step of the checkpoint that the run continued from, else 0.

    Raises:
        UserError: A loss is not finite, the disk is full, or another process trains
            this run.
        OSError: A checkpoint cannot be written.
    """
    if checkpoints is not None and not checkpoints.begin():
        _say(show, NOT_SHARED)
        checkpoints = None
    done = went_on_from = 0
    if checkpoints is not None and (found := checkpoints.newest()):
        step = step_of(found)
        done = min(REPEATED, step)
        train(worker, range(done))
        kept, fits = _load(found, worker.kept(), checkpoints.same_bits)
        if not fits:
            _say(show, NOT_USED)
        else:
            if not checkpoints.same_bits:
                _say(show, OTHER_BITS)
            worker.restore(kept)
            done = went_on_from = step
            _say(show, f"going on from step {step} of {steps}")
    left = range(done, steps)
    for step in progress(left, show, total=steps, show=bool(show), initial=done):
        train(worker, [step])
        after = step + 1
        # not after the last step: its results are written right after it
        if checkpoints is not None and after % checkpoints.every == 0 and after < steps:
            checkpoints.save(after, worker.kept())
    return went_on_from


def _load(found: Path, own: Kept, same_bits: bool) -> tuple[Kept, bool]:
    # and whether all ranks can load it, with the rows of their own first steps in it
    kept: Kept = {}

    def load() -> bool:
        try:
            kept.update(load_rank(found))
            rows, before = (json.loads(one["seen"])["rows"] for one in (own, kept))
            shapes, others = (
                {name: tensor.shape for name, tensor in one["model"].items()}
                for one in (own, kept)
            )
            same = not same_bits or rows == before[: len(rows)]
            return bool(same and shapes == others)
        except OSError:
            raise
        except Exception:
            # torch has many kinds of errors, such as for an object of a user's strategy
            return False

    return kept, all(everyone(load))


def _say(show: str, line: str) -> None:
    if is_main_process():
        note(f"{show}: {line}" if show else line)
