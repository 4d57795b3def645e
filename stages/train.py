"""Training with W processes.

    python -m stages.train --backend gloo --world-size 2

Validates its input, then launches itself as W ranks under torchrun; if started by
torchrun, it is one of the ranks. An interrupted run resumes from its newest checkpoint.
Writes evidence and timings for later stages. ``launch/host`` starts several hosts.
"""

import argparse
from functools import partial
from pathlib import Path

from minitrain.core.errors import run_stage
from minitrain.core.params import load_params
from minitrain.harness.hosts import add_arguments, hosts_of
from minitrain.harness.launcher import run_as_ranks
from minitrain.train.run import Job, preflight, train_rank


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=["gloo", "nccl"], required=True)
    parser.add_argument("--world-size", type=int, required=True)
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="FOLDER",
        help="start from the newest checkpoint in FOLDER, of another world size",
    )
    add_arguments(parser)
    arguments = parser.parse_args()
    hosts = hosts_of(arguments)
    world_size = arguments.world_size
    ranks_here = hosts.ranks_here(world_size) if hosts else None
    job = Job(
        params=load_params(Path("params.yaml")),
        backend=arguments.backend,
        world_size=world_size,
        shards=Path(f"data/shards/world-{world_size}"),
        out=Path(f"data/runs/{arguments.backend}-{world_size}"),
        script=Path(__file__),
        resume=arguments.resume,
    )

    run_as_ranks(
        "stages.train",
        partial(train_rank, job),
        world_size,
        # reports mistakes once, before the launch, instead of in every rank
        preflight=partial(preflight, job, ranks_here),
        threads_per_process=job.params.train.threads_per_process,
        max_restarts=job.params.launch.max_restarts,
        hosts=hosts,
        timeout_s=job.params.launch.timeout_s,
    )


if __name__ == "__main__":
    run_stage(main)
