"""What is noted of a step beside what it computed."""

from torch import nn

from minitrain.sync.strategy import BucketEvent, SyncTrace
from minitrain.train.step_record import StepRecord


def test_buckets_are_noted_with_the_hosts_that_decide_their_sum() -> None:
    record, hosts = StepRecord(nn.Linear(1, 1), []), [[0, 2], [1]]
    bucket = BucketEvent(("weight", "bias"), 8, 0, 1)
    for step in range(2):
        record.layout(step, SyncTrace([bucket], hosts=hosts))
    layout = [{"num_bytes": 8, "parameters": ["weight", "bias"]}]
    noted = {"kind": "buckets", "step": 0, "buckets": layout, "hosts": hosts}
    assert record.rows == [noted]
