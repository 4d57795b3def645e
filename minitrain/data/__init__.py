"""From text to the batches of a rank."""

from minitrain.data.shards import make_shard

__all__ = ["make_shard"]
