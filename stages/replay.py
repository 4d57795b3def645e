"""Repeat a run of W ranks in one process, shard after shard, in the ring's order.

python -m stages.replay --world-size 2
"""

import argparse
from pathlib import Path

import torch

from minitrain.core.errors import run_stage
from minitrain.core.files import read_jsonl, write_json
from minitrain.core.params import load_params
from minitrain.core.progress import progress
from minitrain.core.provenance import bits_depend_on, require_torch
from minitrain.proof.replay import BucketLayout, replay
from minitrain.sync.catalog import find_strategy
from minitrain.train.loop import steps_to_train
from minitrain.train.precision import make_precision
from minitrain.train.recorder import Recorder, recorded_steps, save_tensors
from minitrain.train.run import (
    optimizer_of,
    shard_batches,
    start_model,
    start_streams,
    write_hashes,
    write_losses,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world-size", type=int, required=True)
    world_size = parser.parse_args().world_size
    params = load_params(Path("params.yaml"))
    require_torch(params.environment.torch)
    torch.set_num_threads(params.train.threads_per_process)

    # DDP broadcasts rank 0's weights, so the replay starts from rank 0's seed; what a
    # rank draws afterwards (dropout) goes on from its own.
    shards = shard_batches(params, Path(f"data/shards/world-{world_size}"), world_size)
    streams = start_streams(params, len(shards))
    model = start_model(params, rank=0)
    num_steps = steps_to_train(params.train, len(shards[0].order))

    # Which gradients were added up together is the one thing it takes from the run.
    rows = read_jsonl(Path(f"data/runs/gloo-{world_size}/hashes.jsonl"))
    layout = BucketLayout(rows, model)
    steps = progress(range(num_steps), f"replay-{world_size}", total=num_steps)
    recorder = Recorder(model, recorded_steps(num_steps, params.train.hash_every))
    results = replay(
        model,
        shards,
        layout,
        optimizer_of(model, params.train),
        steps,
        recorder,
        streams,
        find_strategy(params.train.sync),
        world_size,
        make_precision(params.train.precision),
    )

    out = Path(f"data/runs/replay-{world_size}")
    save_tensors(out / "state.pt", model.state_dict())
    write_hashes(out / "hashes.jsonl", results)
    write_losses(out / "losses.csv", results)
    threads = params.train.threads_per_process
    write_json(out / "machine.json", bits_depend_on(threads))


if __name__ == "__main__":
    run_stage(main)
