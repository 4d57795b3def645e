"""Checkpoints on disk: each is whole, or it is not there.

    FOLDER/step-25/rank-0.pt ...    what each rank keeps, saved by torch
                   manifest.json    whose it is, and SHA-256 of every file

Files are written under a temporary name, flushed to the disk and renamed. Whatever
was torn or altered since does not fit the manifest, whose own sum is in it.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist

from minitrain.comm.together import everyone, only_first, who_sees
from minitrain.core.errors import UserError
from minitrain.core.files import fsync, read_json, remove, sha256_file, writing
from minitrain.core.printable import note
from minitrain.train.checkpoint_lock import hold

# what one rank keeps: tensors, numbers, text, and lists and dicts of these
Kept = dict[str, Any]
Manifest = dict[str, Any]
MANIFEST, OWN_SUM = "manifest.json", "manifest_sha256"
STEP = "step-"


@dataclass(frozen=True)
class Checkpoints:
    """Where the checkpoints of one run lie, and how often they are written.

    ``identity`` is all that decides what the run computes, in plain values: a
    checkpoint with another one is not this run's. One is written after every ``every``
    steps, and the newest ``keep`` stay.
    """

    folder: Path
    identity: Mapping[str, Any]
    every: int
    keep: int

    def due(self, step: int) -> bool:
        """Whether a checkpoint is written when ``step`` steps are done."""
        return step % self.every == 0

    def save(self, step: int, kept: Kept) -> None:
        """Write what every rank keeps after ``step`` steps, then forget the oldest.

        Collective. Raises, on all ranks, UserError where a disk is full and OSError
        where one cannot write else; the checkpoints that were there are still there.
        """
        rank = dist.get_rank() if dist.is_initialized() else 0
        begun, final = self.folder / f".{STEP}{step}.tmp", self.folder / _name(step)
        try:
            only_first(lambda: _make_empty(begun))
            written = everyone(lambda: _write(begun / f"rank-{rank}.pt", kept))
            about = {"identity": dict(self.identity), "step": step, "files": written}
            only_first(lambda: self._complete(begun, final, about))
        except BaseException:
            # its bytes may be what others lack
            shutil.rmtree(begun, ignore_errors=True)
            raise

    def _complete(self, begun: Path, final: Path, about: Manifest) -> None:
        about["files"] = dict(about["files"])
        about[OWN_SUM] = _sum_of(about)
        with writing(final):
            (begun / MANIFEST).write_text(json.dumps(about, indent=2), encoding="utf-8")
            fsync(begun / MANIFEST)
            fsync(begun)
            # of its name there can only be one that was refused, as of other bits
            _forget(final)
            os.rename(begun, final)
            fsync(self.folder)
        # later ones were refused, or the run would be beyond them
        steps = steps_in(self.folder)
        usable = [one for one in steps if one <= step_of(final)]
        for one in sorted({*steps} - {*usable[: self.keep]}):
            _forget(self.folder / _name(one))

    def begin(self) -> bool:
        """Hold the folder for this process, until it ends: nobody else writes there.
        False where ranks on other hosts do not see it. Collective.

        Raises UserError where another process holds it.
        """
        only_first(lambda: hold(self.folder))
        return all(who_sees(self.folder))

    def newest(self, below: int | None = None) -> Path | None:
        """Return the newest one that is whole and this run's, the same on all ranks;
        None if there is none. Others are named on stderr. Collective.

        Args:
            below: Only those of fewer steps.
        """
        return only_first(lambda: self._newest(below))

    def _newest(self, below: int | None) -> Path | None:
        for begun in self.folder.glob(".*.tmp"):
            remove(begun)
        ours = dict(self.identity)
        return newest_whole(self.folder, lambda found: found == ours, below)

    @property
    def same_bits(self) -> bool:
        """Whether a run that goes on from one has the bits of an undisturbed one."""
        return True

    def load(self, checkpoint: Path) -> Kept:
        """What this rank kept in what :meth:`newest` found."""
        rank = dist.get_rank() if dist.is_initialized() else 0
        return load_rank(checkpoint, rank)

    def forget(self) -> None:
        """Nobody needs them any more: the run has ended, and its outputs are there."""
        shutil.rmtree(self.folder, ignore_errors=True)
        # other runs may have theirs beside it
        for above in (self.folder.parent, self.folder.parent.parent):
            with suppress(OSError):
                above.rmdir()


def steps_in(folder: Path) -> list[int]:
    """After which steps ``folder`` has checkpoints, whole or not, the newest first."""
    names = [path.name.removeprefix(STEP) for path in folder.glob(f"{STEP}*")]
    return sorted((int(name) for name in names if name.isdigit()), reverse=True)


def step_of(checkpoint: Path) -> int:
    """How many steps were done when it was written."""
    return int(checkpoint.name.removeprefix(STEP))


def newest_whole(
    folder: Path, is_ours: Callable[[Manifest], bool], below: int | None = None
) -> Path | None:
    """Return the newest checkpoint in ``folder`` that is whole and whose identity
    ``is_ours``, of fewer steps than ``below``; others are named on stderr.
    """
    for step in steps_in(folder):
        if below is not None and step >= below:
            continue
        checkpoint = folder / _name(step)
        try:
            if is_ours(read_manifest(checkpoint)["identity"]):
                return checkpoint
            why = f"{checkpoint}: another run's"
        except DamagedError as error:
            why = str(error)
        note(f"checkpoint not used: {why}")
    return None


class DamagedError(Exception):
    """A checkpoint is not as it was written: the line names its first such file."""


def read_manifest(checkpoint: Path) -> Manifest:
    """What stands in the manifest of ``checkpoint``, with every file as it says.

    Raises DamagedError that names the first file which is not.
    """
    path = checkpoint / MANIFEST
    try:
        manifest: Manifest = read_json(path)
        whole = manifest.pop(OWN_SUM) == _sum_of(manifest)
    except (OSError, UserError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole or _name(manifest["step"]) != checkpoint.name:
        raise DamagedError(f"{path}: missing or damaged")
    for name, sha256 in manifest["files"].items():
        file = checkpoint / name
        try:
            whole = sha256_file(file) == sha256
        except (OSError, UserError):
            whole = False
        if not whole:
            raise DamagedError(f"{file}: missing or damaged")
    return manifest


def load_rank(checkpoint: Path, rank: int) -> Kept:
    """What ``rank`` kept; it never runs code from the file."""
    kept: Kept = torch.load(
        checkpoint / f"rank-{rank}.pt", map_location="cpu", weights_only=True
    )
    return kept


def _name(step: int) -> str:
    return f"{STEP}{step}"


def _sum_of(manifest: Manifest) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


class _Summed:
    """A file that is written once, from its beginning, with its SHA-256."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.sha256 = file, hashlib.sha256()

    def write(self, data: Any) -> int:
        self.sha256.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def _write(path: Path, kept: Kept) -> tuple[str, str]:
    """Name and SHA-256 of the file that is then on the disk."""
    with writing(path), open(path, "wb") as file:
        summed: Any = _Summed(file)
        torch.save(kept, summed)
        file.flush()
        fsync(path)
    return path.name, summed.sha256.hexdigest()


def _make_empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _forget(checkpoint: Path) -> None:
    """Remove ``checkpoint``; readers see it whole or not at all."""
    if checkpoint.is_dir():
        # a name that is removed at the next start, as of all that was begun
        gone = checkpoint.with_name(f".{checkpoint.name}.old.tmp")
        shutil.rmtree(gone, ignore_errors=True)
        os.rename(checkpoint, gone)
        shutil.rmtree(gone, ignore_errors=True)
