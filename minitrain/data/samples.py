"""Samples in memory or in a file that is mapped into it, as one run of tokens."""

import hashlib
import mmap
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]
# what is worked on at once: memory is a small multiple of it, whatever the corpus
BLOCK_TOKENS = 1 << 18


@dataclass(frozen=True)
class Samples:
    """Token sequences laid end to end: sample i is ``tokens[offsets[i]:offsets[i+1]]``.

    ``tokens`` is uint8 of shape (total,), ``offsets`` int64 of shape (samples + 1,).
    """

    tokens: Tokens
    offsets: Offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Tokens:
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens in each sample, shape (samples,)."""
        return np.diff(self.offsets)

    def sha256(self) -> str:
        """SHA-256 over lengths and tokens: equal exactly for equal samples in order."""
        digest = hashlib.sha256()
        for block in self.blocks():
            digest.update(block.lengths().tobytes())
        for block in self.blocks():
            digest.update(np.ascontiguousarray(block.tokens).data)
        return digest.hexdigest()

    def piece(self, first: int, stop: int) -> "Samples":
        """The samples from ``first`` to before ``stop``, as far as there are any: the
        tokens are a view, the offsets begin at 0.
        """
        offsets = self.offsets[first : stop + 1]
        return Samples(self.tokens[offsets[0] : offsets[-1]], offsets - offsets[0])

    def stop(self, first: int, num_tokens: int) -> int:
        """Before which sample those from ``first`` on exceed ``num_tokens``."""
        end = self.offsets[first] + num_tokens
        return int(np.searchsorted(self.offsets, end, "right")) - 1

    def blocks(self, world_size: int = 1) -> Iterator["Samples"]:
        """All samples in order, some BLOCK_TOKENS at once: each block starts with a
        sample of rank 0 and, unless there are fewer samples, has one of every rank.
        """
        first = 0
        while first < len(self):
            rounds = (self.stop(first, BLOCK_TOKENS) - first) // world_size
            stop = first + max(1, rounds) * world_size
            if len(self) - stop < world_size:
                stop = len(self)
            yield self.piece(first, stop)
            self.release()
            first = stop

    def release(self) -> None:
        """Give back the memory of what was read from a memory-mapped file."""
        for array in (self.tokens, self.offsets):
            # one that may be written to would lose what was
            read_only = isinstance(array, np.memmap) and array.mode == "r"
            if read_only and isinstance(array.base, mmap.mmap):
                array.base.madvise(mmap.MADV_DONTNEED)
