"""Train a few steps on the shards of this folder; print the anonymous memory in kB.

Anonymous memory excludes the memory-mapped shard, which is backed by a file.
"""

from pathlib import Path

import torch

from minitrain.comm.groups import distributed
from minitrain.core.params import load_params
from minitrain.train.config import config_of
from minitrain.train.observer import StepObserver
from minitrain.train.worker import Worker


def main() -> None:
    params = load_params(Path("params.yaml"))
    torch.set_num_threads(params.train.threads_per_process)
    with distributed():
        config = config_of(params, Path("data/shards/world-1"), 1)
        Worker(config, observer=StepObserver).train(range(10))
    status = Path("/proc/self/status").read_text().splitlines()
    print(next(line for line in status if line.startswith("RssAnon")).split()[1])


if __name__ == "__main__":
    main()
