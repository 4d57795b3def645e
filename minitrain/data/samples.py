"""Samples in memory or in a file that is mapped into it, as one run of tokens."""

import hashlib
import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]
# so many samples of a mapped file are in memory at once
SAMPLES_AT_ONCE = 1 << 10


@dataclass(frozen=True)
class Samples:
    """Token sequences laid end to end: sample i is ``tokens[offsets[i]:offsets[i+1]]``.

    ``tokens`` is uint8 of shape (total,), ``offsets`` int64 of shape (samples + 1,).
    """

    tokens: Tokens
    offsets: Int64s

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Tokens:
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    def lengths(self) -> Int64s:
        """Tokens in each sample, shape (samples,)."""
        return np.diff(self.offsets)

    def take(self, indices: Iterable[int]) -> Iterator[Tokens]:
        """Yield the samples of these indices; pages of a mapped file do not stay in
        memory.
        """
        # a view that is not mapped itself: quicker to slice
        tokens, offsets = np.asarray(self.tokens), np.asarray(self.offsets)
        for count, index in enumerate(indices, start=1):
            yield tokens[offsets[index] : offsets[index + 1]]
            if count % SAMPLES_AT_ONCE == 0:
                self._release()

    def sha256(self) -> str:
        """SHA-256 over lengths and tokens: equal exactly for equal samples in order."""
        return sha256_of(self.lengths(), self.take(range(len(self))))

    def _release(self) -> None:
        for array in (self.tokens, self.offsets):
            # one that may be written to would lose what was
            read_only = isinstance(array, np.memmap) and array.mode == "r"
            if read_only and isinstance(array.base, mmap.mmap):
                array.base.madvise(mmap.MADV_DONTNEED)


def sha256_of(lengths: Int64s, samples: Iterable[Tokens]) -> str:
    """Return the hash of :meth:`Samples.sha256`."""
    digest = hashlib.sha256(lengths.tobytes())
    for tokens in samples:
        digest.update(tokens.data)
    return digest.hexdigest()
