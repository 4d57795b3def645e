"""Train with W processes and write everything the proof and the account need.

    python -m stages.train --backend gloo --world-size 2

Started plainly, it checks what can be checked and then starts itself W times under
torchrun; started by torchrun, it is one of the ranks.
"""

import argparse
import sys
from pathlib import Path

from minitrain.errors import run_stage
from minitrain.launcher import (
    launch,
    torchrun,
    torchrun_available,
    torchrun_rank,
    under_torchrun,
)
from minitrain.params import load_params
from minitrain.run import Job, preflight, train_rank


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=["gloo", "nccl"], required=True)
    parser.add_argument("--world-size", type=int, required=True)
    arguments = parser.parse_args()
    world_size = arguments.world_size
    job = Job(
        params=load_params(Path("params.yaml")),
        backend=arguments.backend,
        world_size=world_size,
        shards=Path(f"data/shards/world-{world_size}"),
        out=Path(f"data/runs/{arguments.backend}-{world_size}"),
    )

    # A rank: everything below has been checked by the process that launched it.
    if under_torchrun():
        with torchrun_rank():
            train_rank(job, "torchrun")
        return

    # Mistakes are found here, where they cost one line and not one per rank.
    preflight(job)
    threads = job.params.train.threads_per_process
    if torchrun_available():
        torchrun("stages.train", sys.argv[1:], world_size, threads_per_process=threads)
    else:
        launch(train_rank, world_size, job, "launch", threads_per_process=threads)


if __name__ == "__main__":
    run_stage(main)
