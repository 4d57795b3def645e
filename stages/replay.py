"""Repeat a run of W ranks in one process, shard after shard, in the strategy's order.

python -m stages.replay --world-size 2
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
from minitrain.train.recorder import save_tensors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world-size", type=int, required=True)
    world_size = parser.parse_args().world_size
    params = load_params(Path("params.yaml"))
    require_torch(params.environment.torch)
    threads = params.train.threads_per_process
    torch.set_num_threads(threads)

    # Which gradients were added up together is the one thing it takes from the run.
    rows = read_jsonl(Path(f"data/runs/gloo-{world_size}/hashes.jsonl"), "kind")
    config = config_of(params, Path(f"data/shards/world-{world_size}"), world_size)
    again = replay(config, rows, world_size, show=f"replay-{world_size}")

    out = Path(f"data/runs/replay-{world_size}")
    save_tensors(out / "state.pt", again.state)
    write_records(out, again.results, threads)


if __name__ == "__main__":
    run_stage(main)
