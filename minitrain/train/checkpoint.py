"""Checkpoints on disk, which are used only if they are complete and undamaged.

    FOLDER/step-25/rank-0.pt ...    state of each rank, saved by torch
                   manifest.json    identity of the run, and SHA-256 of every file

The manifest is written after all files are on the disk: an interrupted save has none.
"""

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from minitrain.comm.collective_calls import everyone, only_first, who_sees
from minitrain.comm.groups import group_timeout_s
from minitrain.core.errors import UserError
from minitrain.core.files import fsync, open_atomic, read_json, sha256_file, write_json
from minitrain.core.printable import print_note

# state of one rank: tensors, numbers, text, and lists and dicts of these
Kept = dict[str, Any]
Manifest = dict[str, Any]
MANIFEST, OWN_SUM = "manifest.json", "manifest_sha256"
STEP = "step-"
# a stage that is stopped exits within ten seconds
WAIT_S = 15.0
POLL_S = 0.1


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
        the ``keep`` newest checkpoints up to ``step``. Collective. An OSError or
        UserError (full disk) of one rank is raised on all, before any is removed.
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
        first = steps.index(step)
        for one in [*steps[:first], *steps[first + self.keep :]]:
            shutil.rmtree(self.folder / f"{STEP}{one}", ignore_errors=True)

    def begin(self) -> bool:
        """Lock the folder until rank 0 exits, and return whether all ranks see it, as
        on one host or a shared file system. Collective. Raises UserError if another
        process holds the lock for 15 s (or half the group's timeout, if shorter).
        """
        only_first(lambda: _lock(self.folder))
        # an earlier run of this process has removed it
        only_first(lambda: self.folder.mkdir(parents=True, exist_ok=True))
        return all(who_sees(self.folder))

    def newest(self) -> Path | None:
        """Return the newest complete checkpoint of this run, or None. Collective."""
        return only_first(self._newest)

    def _newest(self) -> Path | None:
        for checkpoint, identity in whole_in(self.folder):
            if identity == dict(self.identity):
                return checkpoint
            print_note(f"checkpoint not used: {checkpoint}: another run's")
        return None

    def forget(self) -> None:
        """Remove all checkpoints of the run, and parent folders that become empty."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for folder in self.folder.parents[:2]:
            with suppress(OSError):
                folder.rmdir()


def steps_in(folder: Path) -> list[int]:
    """Return the steps of all checkpoints in ``folder``, also damaged, newest first."""
    names = [path.name.removeprefix(STEP) for path in folder.glob(f"{STEP}*")]
    return sorted((int(name) for name in names if name.isdigit()), reverse=True)


def step_of(checkpoint: Path) -> int:
    """Return the number of steps done before the checkpoint, from its folder's name."""
    return int(checkpoint.name.removeprefix(STEP))


def whole_in(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the complete checkpoints in ``folder``, each with the identity of its run,
    newest first. Print a line on stderr for each that is damaged.
    """
    for step in steps_in(folder):
        checkpoint = folder / f"{STEP}{step}"
        try:
            identity = read_manifest(checkpoint)["identity"]
        except UserError as error:
            print_note(f"checkpoint not used: {error}")
        else:
            yield checkpoint, identity


def read_manifest(checkpoint: Path) -> Manifest:
    """Check the hash of every file of a checkpoint and return its manifest. Raises
    UserError if a file is missing or has changed.
    """
    # a damaged manifest may hold anything
    with suppress(Exception):
        manifest: Manifest = read_json(checkpoint / MANIFEST)
        own_sum, files = manifest.pop(OWN_SUM), manifest["files"]
        found = {name: sha256_file(checkpoint / name) for name in files}
        is_whole = own_sum == sum_of(manifest) and found == files
        if is_whole and manifest["step"] == step_of(checkpoint):
            return manifest
    raise UserError(f"{checkpoint}: incomplete or damaged")


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


# the descriptor stays open, and the folder locked, until this process exits
@cache
def _lock(folder: Path) -> int:
    # after DVC was killed, its stage may still be exiting when the next one begins
    # the other ranks wait meanwhile, and not longer than the group's limit
    deadline = time.monotonic() + min(WAIT_S, group_timeout_s() / 2)
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
        with suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # a run that was waited for removes it, and a lock on that excludes no other
            if os.path.samestat(os.fstat(descriptor), folder.stat()):
                break
        os.close(descriptor)
        if time.monotonic() > deadline:
            raise UserError(
                f"{folder}: another process trains this very run and writes its "
                "checkpoints there; wait for it, or end it"
            )
        time.sleep(POLL_S)
    for above in list(folder.parents)[:3]:
        # a power cut must not lose the way to it
        fsync(above)
    return descriptor
