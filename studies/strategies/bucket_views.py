"""Stock DDP with a setting of torch's that no strategy of ours needs."""

from typing import ClassVar

from minitrain.sync.ddp_buckets import StockDDP


class BucketViews(StockDDP):
    """DDP with ``gradient_as_bucket_view``: without copies back from its buckets."""

    bucket_views: ClassVar[bool] = True
