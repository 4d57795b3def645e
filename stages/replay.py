"""Replaying a run of W ranks in one process, shard by shard.

    python -m stages.replay --world-size 2

Adds the gradients of the shards in the same order as the run's strategy.
"""

import argparse
from pathlib import Path

import torch

from minitrain.core.errors import run_stage
from minitrain.core.files import read_jsonl
from minitrain.core.params import load_params
from minitrain.core.provenance import require_torch
from minitrain.proof.replay import replay
from minitrain.train.config import config_of
from minitrain.train.outputs import write_records
from minitrain.train.step_record import save_tensors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world-size", type=int, required=True)
    world_size = parser.parse_args().world_size
    params = load_params(Path("params.yaml"))
    require_torch(params.environment.torch)
    threads = params.train.threads_per_process
    torch.set_num_threads(threads)

    # Only the bucket layout and, if they decide the order, the ranks per host are taken
    # from the run.
    hashes = Path(f"data/runs/gloo-{world_size}/hashes.jsonl")
    rows, name = read_jsonl(hashes, "kind"), f"replay-{world_size}"
    shards = Path(f"data/shards/world-{world_size}")
    config = config_of(params, shards, world_size)
    again = replay(config, rows, world_size, show=name)

    out = Path(f"data/runs/{name}")
    save_tensors(out / "state.pt", again.state)
    write_records(out, again.results, threads)


if __name__ == "__main__":
    run_stage(main)
