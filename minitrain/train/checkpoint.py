"""Checkpoints on disk, which are used only if they are complete and undamaged.

    FOLDER/step-25/rank-0.pt ...    state of each rank, saved by torch
                   manifest.json    identity of the run, and SHA-256 of every file

The manifest is written after all files are on the disk, so an interrupted save has
none.
"""

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from minitrain.comm.collective_calls import everyone, only_first, who_sees
from minitrain.comm.groups import group_timeout_s
from minitrain.core.errors import UserError
from minitrain.core.files import fsync, open_atomic, read_json, sha256_file, write_json
from minitrain.core.printable import note

# state of one rank: tensors, numbers, text, and lists and dicts of these
Kept = dict[str, Any]
Manifest = dict[str, Any]
MANIFEST, OWN_SUM = "manifest.json", "manifest_sha256"
STEP = "step-"
# a stage that is stopped exits within ten seconds
WAIT_S = 15.0
POLL_S = 0.1
# folders that this process has locked, with their descriptors
_held: dict[Path, int] = {}


@dataclass(frozen=True)
class Checkpoints:
    """Checkpoints of one run in ``folder``, one after ``every`` steps, of which the
    newest ``keep`` stay. ``identity``: everything that the bits of the run depend on,
    as JSON values. ``same_bits``: a resumed run has those of an uninterrupted one.
    """

    folder: Path
    identity: Mapping[str, Any]
    every: int
    keep: int
    same_bits: bool = True

    def save(self, step: int, kept: Kept) -> None:
        """Write ``kept``, this rank's state after ``step`` steps, then remove all but
        the ``keep`` newest checkpoints up to ``step``. Collective. An error on one rank
        is raised on all ranks, and leaves earlier checkpoints unchanged.

        Raises:
            UserError: A disk is full.
            OSError: A rank cannot write.
        """
        checkpoint = self.folder / f"{STEP}{step}"
        try:
            # a checkpoint of this step is there only if it was refused
            only_first(lambda: _make_empty(checkpoint))
            written = everyone(lambda: _write(checkpoint / f"rank-{_rank()}.pt", kept))
        except BaseException:
            # frees space on a full disk
            shutil.rmtree(checkpoint, ignore_errors=True)
            raise
        # outside of `try`: it may be the only complete one now, so it must stay
        only_first(lambda: self._complete(checkpoint, dict(written)))

    def _complete(self, checkpoint: Path, files: dict[str, str]) -> None:
        step = step_of(checkpoint)
        about = {"identity": dict(self.identity), "step": step, "files": files}
        write_json(checkpoint / MANIFEST, {**about, OWN_SUM: sum_of(about)})
        # later ones were refused, or the run would have resumed from them
        steps = steps_in(self.folder)
        usable = [one for one in steps if one <= step]
        for one in {*steps} - {*usable[: self.keep]}:
            shutil.rmtree(self.folder / f"{STEP}{one}", ignore_errors=True)

    def begin(self) -> bool:
        """Lock the folder until rank 0 exits, and return whether all ranks see it, as
        on one host or a shared file system. Collective. Raises UserError if another
        process holds the lock for 15 s (or half the group's timeout, if shorter).
        """
        only_first(lambda: _lock(self.folder))
        return all(who_sees(self.folder))

    def newest(self, below: int | None = None) -> Path | None:
        """Return :func:`newest_whole` of this run, equal on all ranks. Collective."""
        ours = dict(self.identity)
        return only_first(
            lambda: newest_whole(self.folder, lambda found: found == ours, below)
        )

    def forget(self) -> None:
        """Remove all checkpoints of the run, once it has ended. Call it on one rank."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.remove_empty()

    def remove_empty(self) -> None:
        """Remove the folder and its two parents if they are empty."""
        for folder in (self.folder, *self.folder.parents[:2]):
            with suppress(OSError):
                folder.rmdir()


def steps_in(folder: Path) -> list[int]:
    """Return the steps of all checkpoints in ``folder``, also damaged, newest first."""
    names = [path.name.removeprefix(STEP) for path in folder.glob(f"{STEP}*")]
    return sorted((int(name) for name in names if name.isdigit()), reverse=True)


def step_of(checkpoint: Path) -> int:
    """Return the number of steps done before the checkpoint, from its folder's name."""
    return int(checkpoint.name.removeprefix(STEP))


def newest_whole(
    folder: Path, is_ours: Callable[[Manifest], bool], below: int | None = None
) -> Path | None:
    """Return the newest complete checkpoint in ``folder`` whose identity ``is_ours``
    accepts, of fewer steps than ``below`` (if given); None if there is none. Print a
    line on stderr for each newer checkpoint that is damaged or not accepted.
    """
    for step in steps_in(folder):
        if below is not None and step >= below:
            continue
        checkpoint = folder / f"{STEP}{step}"
        try:
            identity = read_manifest(checkpoint)["identity"]
        except UserError as error:
            note(f"checkpoint not used: {error}")
            continue
        if is_ours(identity):
            return checkpoint
        note(f"checkpoint not used: {checkpoint}: another run's")
    return None


def read_manifest(checkpoint: Path) -> Manifest:
    """Check the hash of every file of a checkpoint and return its manifest. Raises
    UserError if a file is missing or has changed.
    """
    file = checkpoint / MANIFEST
    try:
        manifest: Manifest = read_json(file)
        _require(manifest.pop(OWN_SUM) == sum_of(manifest))
        _require(manifest["step"] == step_of(checkpoint))
        for name, sha256 in manifest["files"].items():
            file = checkpoint / name
            _require(sha256_file(file) == sha256)
    except (OSError, UserError, LookupError, TypeError, AttributeError, ValueError):
        raise UserError(f"{file}: missing or damaged") from None
    return manifest


def _require(whole: bool) -> None:
    if not whole:
        raise ValueError


def load_rank(checkpoint: Path, rank: int | None = None) -> Kept:
    """Load the state of ``rank`` (None: this rank) on the CPU, without running code
    from the file. Raises OSError if it is missing, and torch's errors if it is damaged.
    """
    file = checkpoint / f"rank-{_rank() if rank is None else rank}.pt"
    return torch.load(file, map_location="cpu", weights_only=True)


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def sum_of(values: Mapping[str, Any]) -> str:
    """Return the SHA-256 (hex) of ``values``, which JSON can hold."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _make_empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    fsync(folder.parent)


def _write(path: Path, kept: Kept) -> tuple[str, str]:
    with open_atomic(path, "wb") as file:
        torch.save(kept, file)
    return path.name, sha256_file(path)


def _lock(folder: Path) -> None:
    # after DVC was killed, its stage may still be exiting when the next one begins
    # the other ranks wait meanwhile, and not longer than the group's limit
    deadline = time.monotonic() + min(WAIT_S, group_timeout_s() / 2)
    while not _is_locked(folder):
        if time.monotonic() > deadline:
            raise UserError(
                f"{folder}: another process trains this very run and writes its "
                "checkpoints there; wait for it, or end it"
            )
        time.sleep(POLL_S)


def _is_locked(folder: Path) -> bool:
    # its holder may remove it at any moment
    with suppress(FileNotFoundError):
        folder.mkdir(parents=True, exist_ok=True)
        for above in list(folder.parents)[:3]:
            # a power cut must not lose the way to it
            fsync(above)
        descriptor = _held.pop(folder.resolve(), None) or os.open(folder, os.O_RDONLY)
        with suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # a folder that its holder has just removed is not the one in this place
            if os.path.samestat(os.fstat(descriptor), folder.stat()):
                # open, and so locked, until this process exits
                _held[folder.resolve()] = descriptor
                return True
        os.close(descriptor)
    return False
