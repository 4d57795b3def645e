"""Tensors that ranks leave where the process that started them finds them.

A pipe would hold the whole record of a large model three times over: as tensors and as
a message in the rank, and as a message again in the reader. Ranks write into a file in
memory instead, once for all tensors that are equal, and the reader maps it.
"""

import mmap
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any, Self, cast

import numpy as np
import torch
from torch import Tensor

from minitrain.data.cut import bytes_of
from minitrain.sync.strategy import whole
from minitrain.train.recorder import Recorder

# of a state, one step's end is the next one's start
OF_A_STATE = ("before", "after", "state")
# every number begins at a multiple of its size
ALIGNED = 64
# bytes that are compared at a time: they fit a processor's cache
CHUNK = 1 << 18


@dataclass(frozen=True)
class Laid:
    """Where a tensor lies, row after row, from ``offset`` on."""

    offset: int
    dtype: torch.dtype
    shape: torch.Size


class Shelf:
    """The reader's end: a file of which ranks know the ``path``. It has no name, and is
    gone with its reader.
    """

    def __init__(self) -> None:
        self.path, self._file = _file_without_a_name()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        # what was taken stays
        self._file.close()

    def taken(self, laid: Mapping[str, Any]) -> dict[str, Tensor]:
        """The tensors of what a rank put in, each a :class:`Laid`."""
        size = os.fstat(self._file.fileno()).st_size
        # private: what is written into a tensor is nobody else's
        private = mmap.ACCESS_COPY
        mapped = mmap.mmap(self._file.fileno(), size, access=private) if size else b""
        return {name: _tensor(mapped, one) for name, one in laid.items()}


class Shelved(dict[str, Any]):
    """A rank's end: lays down what is put into it by STEP/KIND/NAME, and holds on to
    the places alone. Without a ``path`` it forgets what is put in.
    """

    def __init__(self, path: str | None) -> None:
        super().__init__()
        self._file: IO[bytes] | None = None
        if path:
            # :meth:`close` closes it
            self._file = open(path, "r+b", buffering=0)  # noqa: SIM115
        self._end = 0
        self._states: dict[str, Laid] = {}

    def __setitem__(self, key: str, tensor: Tensor) -> None:
        if self._file is None:
            return
        _, kind, name = key.split("/", 2)
        known = self._states.get(name) if kind in OF_A_STATE else None
        if known is None or not self._holds(known, tensor):
            known = self._lay(tensor)
        super().__setitem__(key, known)
        if kind in OF_A_STATE:
            self._states[name] = known

    def close(self) -> None:
        """Nothing more is put in."""
        if self._file is not None:
            self._file.close()

    def _lay(self, tensor: Tensor) -> Laid:
        assert self._file is not None
        laid = Laid(self._end, tensor.dtype, tensor.shape)
        left, place = memoryview(bytes_of(tensor)), self._end
        while left:
            written = os.pwrite(self._file.fileno(), left, place)
            left, place = left[written:], place + written
        self._end = -(-place // ALIGNED) * ALIGNED
        return laid

    def _holds(self, laid: Laid, tensor: Tensor) -> bool:
        """Whether what lies there has the bytes of ``tensor``."""
        assert self._file is not None
        if (laid.dtype, laid.shape) != (tensor.dtype, tensor.shape):
            return False
        ours = np.frombuffer(bytes_of(tensor), np.uint8)
        there = bytearray(min(CHUNK, len(ours)))
        for start in range(0, len(ours), CHUNK):
            part = ours[start : start + CHUNK]
            read = os.preadv(self._file.fileno(), [there], laid.offset + start)
            found = np.frombuffer(there, np.uint8)[: min(read, len(part))]
            if not np.array_equal(part, found):
                return False
        return True


class ShelvingRecorder(Recorder):
    """Puts what it samples on a shelf as it is: that copies the bytes at once."""

    def _sample(
        self, step: int | str, kind: str, tensors: Mapping[str, Tensor]
    ) -> None:
        for name, tensor in tensors.items():
            # on all ranks, of whom each may hold a part
            self.sampled[f"{step}/{kind}/{name}"] = whole(tensor)


def _tensor(mapped: Any, laid: Laid) -> Tensor:
    count = laid.shape.numel()
    if not count:
        return torch.empty(laid.shape, dtype=laid.dtype)
    flat = torch.frombuffer(mapped, dtype=laid.dtype, count=count, offset=laid.offset)
    return flat.reshape(laid.shape)


def _file_without_a_name() -> tuple[str, IO[bytes]]:
    if hasattr(os, "memfd_create"):
        file = os.fdopen(os.memfd_create("minitrain"), "r+b", buffering=0)
        # a rank of the same user opens it by its number, where /proc is this system's
        path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        if os.access(path, os.R_OK | os.W_OK):
            return path, file
        file.close()
    # whoever has the shelf closes it, and the file goes with that
    named = tempfile.NamedTemporaryFile(buffering=0)  # noqa: SIM115
    return named.name, cast(IO[bytes], named)
