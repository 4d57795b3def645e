"""A run that goes on where it was interrupted, to the bit.

It makes its first steps again before it goes on from a checkpoint. That brings back
what cannot be saved: after a start DDP has its buckets in another order, and makes them
anew in the first backward pass; from three ranks on they decide the bits. And it shows
whether this machine computes the bits of the checkpoint: their hashes stand in it.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from minitrain.comm.groups import is_main_process
from minitrain.comm.together import everyone
from minitrain.core.errors import UserError
from minitrain.core.printable import note
from minitrain.core.progress import progress
from minitrain.train.checkpoint import Checkpoints, Kept, step_of

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


class Resumable(Protocol):
    """What can be interrupted between two steps."""

    def run(self, steps: Iterable[int]) -> None:
        """Compute ``steps``, one after the other."""
        ...

    def kept(self) -> Kept:
        """All that the steps to come depend on, and what was recorded."""
        ...

    def restore(self, kept: Kept) -> None:
        """Go on from ``kept``, which was taken of the same run."""
        ...

    def interrupted(self) -> None:
        """A checkpoint was written or read since the last step."""
        ...

    def recorded_in(self, kept: Kept) -> list[Any]:
        """The rows of hashes in ``kept``, in the order in which they were made."""
        ...


def run_through(
    subject: Resumable,
    steps: int,
    checkpoints: Checkpoints | None = None,
    *,
    show: str = "",
) -> int:
    """Let ``subject`` compute ``steps`` steps, the last ones where a checkpoint shows
    that the others are done -> how many those were, 0 where none did. Collective.

    ``show`` names a progress bar. Raises OSError where a checkpoint cannot be written.
    """
    if checkpoints is not None and not checkpoints.begin():
        _say(show, NOT_SHARED)
        checkpoints = None
    done = went_on_from = 0
    if checkpoints is not None:
        done, went_on_from = _go_on(subject, checkpoints, steps, show)
    left = range(done, steps)
    shown = progress(left, show, total=steps, show=bool(show), initial=done)
    subject.run(shown if checkpoints is None else _saved(shown, subject, checkpoints))
    return went_on_from


def _saved(
    steps: Iterable[int], subject: Resumable, checkpoints: Checkpoints
) -> Iterator[int]:
    """``steps``, with a checkpoint after those after which one is due."""
    due = None
    for step in steps:
        # not after the last step: what it led to is written right after it
        if due is not None:
            checkpoints.save(due, subject.kept())
            subject.interrupted()
        yield step
        due = step + 1 if checkpoints.due(step + 1) else None


def _go_on(
    subject: Resumable, checkpoints: Checkpoints, steps: int, show: str
) -> tuple[int, int]:
    """Steps that are done, and those of them that a checkpoint stands for."""
    done, below = 0, None
    while found := checkpoints.newest(below):
        step = below = step_of(found)
        kept = _loaded(checkpoints, found)
        # one of fewer steps than are done here by now is of no use
        if kept is not None and step >= done:
            first, done = done, max(done, min(REPEATED, step))
            subject.run(range(first, done))
            own = subject.kept()
            same = everyone(partial(_same_rows, subject, own, kept))
            subject.interrupted()
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
    subject.interrupted()
    _say(show, f"going on from step {step} of {steps}")
    return step, step


def _loaded(checkpoints: Checkpoints, found: Path) -> Kept | None:
    """Return what this rank kept in ``found``; None if a rank cannot load it."""
    loaded: list[Kept] = []

    def load() -> bool:
        try:
            loaded.append(checkpoints.load(found))
        except (UserError, OSError):
            raise
        except Exception:
            # torch has many kinds of errors for it
            return False
        return True

    return loaded[0] if all(everyone(load)) else None


def _same_rows(subject: Resumable, own: Kept, kept: Kept) -> bool | None:
    """Whether the steps made here are recorded alike in ``kept``; None if that cannot
    be restored: other keys, or a tensor of another shape or type.
    """
    try:
        if own.keys() != kept.keys() or own["model"].keys() != kept["model"].keys():
            return None
        rows, before = subject.recorded_in(own), subject.recorded_in(kept)
        fits = all(_fit(own[key], kept[key]) for key in ("model", "optimizer"))
        return rows == before[: len(rows)] if fits else None
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _fit(own: Any, kept: Any) -> bool:
    """Whether tensors under the same keys have the same shape and type."""
    if isinstance(own, Mapping):
        return all(_fit(own[key], kept[key]) for key in own.keys() & kept.keys())
    if isinstance(own, torch.Tensor):
        return bool(own.shape == kept.shape and own.dtype == kept.dtype)
    return True


def _say(show: str, line: str) -> None:
    if is_main_process():
        note(f"{show}: {line}" if show else line)
