"""Train a few steps on the shards of this folder; print the anonymous memory in kB.

Anonymous memory is what no file backs: the shard, a memory map, is no part of it.
"""

from pathlib import Path

import torch

from minitrain.core.params import load_params
from minitrain.distributed.groups import distributed
from minitrain.sync.stock import StockDDP
from minitrain.train.clock import StepClock
from minitrain.train.loop import train
from minitrain.train.recorder import Recorder
from minitrain.train.run import optimizer_of, rank_batches, start_model


def main() -> None:
    params = load_params(Path("params.yaml"))
    torch.set_num_threads(params.train.threads_per_process)
    with distributed():
        model = start_model(params, rank=0)
        batches = rank_batches(params, Path("data/shards/world-1"), 0, 1)
        sync = StockDDP(model, params.train)
        optimizer = optimizer_of(model, params.train)
        recorder = Recorder(model, steps=())
        train(sync, batches, optimizer, range(10), recorder, StepClock())
    status = Path("/proc/self/status").read_text().splitlines()
    print(next(line for line in status if line.startswith("RssAnon")).split()[1])


if __name__ == "__main__":
    main()
