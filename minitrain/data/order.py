"""The order in which samples are trained on: the same for every world size.

Sample i lies in column ``i % global_batch_size``; an epoch shuffles each column by
itself, and step s takes the s-th sample of every column. A world size W that divides
the batch cuts it by ``i % W``, as the shards on disk are cut. Nothing is padded or
repeated: where the columns are not all of one length, the last batch of an epoch is
smaller.
"""

import numpy as np
import numpy.typing as npt

SampleIds = npt.NDArray[np.int64]


class GlobalOrder:
    """Global batches of sample ids; ``seed`` and the epoch decide their order."""

    def __init__(self, num_samples: int, global_batch_size: int, seed: int) -> None:
        self.num_samples = num_samples
        self.global_batch_size = global_batch_size
        self.seed = seed
        self.set_epoch(0)

    def __len__(self) -> int:
        """Steps in an epoch."""
        return steps_per_epoch(self.num_samples, self.global_batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Shuffle for ``epoch``; the same epoch always gives the same order."""
        self.epoch = epoch
        rng = np.random.default_rng([self.seed, epoch])
        width = min(self.global_batch_size, self.num_samples)
        self._columns = [
            rng.permutation(np.arange(column, self.num_samples, width)).astype(
                np.uint32
            )
            for column in range(width)
        ]

    def batch(self, step: int) -> SampleIds:
        """Return the sample ids of the global batch at ``step`` of the epoch: int64
        (B,).
        """
        ids = [column[step] for column in self._columns if step < len(column)]
        return np.array(ids, np.int64)


def steps_per_epoch(num_samples: int, global_batch_size: int) -> int:
    """Steps in which every sample is computed once; the last may have fewer."""
    return -(-num_samples // global_batch_size)


def rank_part(batch: SampleIds, rank: int, world_size: int) -> SampleIds:
    """The ids in a global batch whose samples lie in the shard of ``rank``."""
    return batch[batch % world_size == rank]
