"""Global sample order, independent of the world size.

Sample i belongs to column ``i % global_batch_size``. Each epoch shuffles every column
separately, and step s takes the s-th sample of every column. A world size W that
divides the batch splits it by ``i % W``, like the shards on disk. No sample is padded
or repeated: if the columns differ in length, the last batch of an epoch is smaller.
"""

import numpy as np
import numpy.typing as npt

SampleIds = npt.NDArray[np.int64]


class GlobalOrder:
    """Global batches of sample ids, shuffled by ``seed`` and epoch (initially 0)."""

    def __init__(self, num_samples: int, global_batch_size: int, seed: int) -> None:
        self.num_samples = num_samples
        self.global_batch_size = global_batch_size
        self.seed = seed
        self.set_epoch(0)

    def __len__(self) -> int:
        """Return the number of steps in an epoch."""
        return steps_per_epoch(self.num_samples, self.global_batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Shuffle for ``epoch``: the same order for the same epoch and seed."""
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
        """Return the sample ids of the batch at ``step`` of the epoch, int64 (B,)."""
        ids = [column[step] for column in self._columns if step < len(column)]
        return np.array(ids, np.int64)


def steps_per_epoch(num_samples: int, global_batch_size: int) -> int:
    """Return the steps per epoch, rounded up; the last batch may be smaller."""
    return -(-num_samples // global_batch_size)


def rank_part(batch: SampleIds, rank: int, world_size: int) -> SampleIds:
    """Return the sample ids in a global ``batch`` that are in the shard of ``rank``."""
    return batch[batch % world_size == rank]
