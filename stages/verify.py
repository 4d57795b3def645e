"""Collect the evidence on one run: its ranks, its replay, its data.

    python -m stages.verify --backend gloo --world-size 2

What the equivalence stage compares runs by is kept beside the verdicts, so that it need
not depend on their timings: gradients of step 0, early and final state, hashes.
"""

import argparse
import shutil
from pathlib import Path

from minitrain.equivalence import (
    bits_rung,
    data_rung,
    not_run,
    precision_rung,
    ranks_rung,
    reduced_once_rung,
    replay_rungs,
    trained_rung,
)
from minitrain.errors import run_stage
from minitrain.files import atomic_path, read_jsonl, sha256_file, write_json
from minitrain.hashes import load_tensors
from minitrain.params import load_params
from minitrain.promises import not_promised
from minitrain.sync.strategies import find_strategy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=["gloo", "nccl"], required=True)
    parser.add_argument("--world-size", type=int, required=True)
    options = parser.parse_args()
    backend, world_size = options.backend, options.world_size
    run = f"{backend}-{world_size}"
    folder, replay = Path(f"data/runs/{run}"), Path(f"data/runs/replay-{world_size}")
    state_files = [
        folder / f"states/state-rank-{rank}.pt" for rank in range(world_size)
    ]
    states = [load_tensors(file) for file in state_files]
    hashes = read_jsonl(folder / "hashes.jsonl")

    train = load_params(Path("params.yaml")).train
    rungs = {
        "trained": trained_rung(hashes),
        "reduced_once": reduced_once_rung(hashes),
        "ranks": ranks_rung(states),
    }
    if backend == "gloo":
        expected = read_jsonl(replay / "hashes.jsonl")
        rungs["data"] = data_rung(hashes, expected)
        if train.precision == "fp16":
            rungs["precision"] = precision_rung(hashes, expected, train.precision)
        rungs |= replay_rungs(hashes, expected, world_size)
        rungs["replay"] = bits_rung(states[0], load_tensors(replay / "state.pt"))
    else:
        # its kernels add in an order of their own, so a CPU cannot repeat its bits
        rungs["replay"] = not_run(f"{backend} computes on another device")

    strategy = find_strategy(train.sync)
    rungs |= not_promised(rungs, strategy, train.precision)

    with atomic_path(Path(f"data/evidence/{run}")) as out:
        out.mkdir()
        shutil.copy(state_files[0], out / "state.pt")
        for name in ("gradients.pt", "early.pt", "hashes.jsonl", "losses.csv"):
            shutil.copy(folder / name, out / name)
        verdicts = {name: rung.as_dict() for name, rung in rungs.items()}
        hashes_of_states = [sha256_file(file) for file in state_files]
        evidence = {"rungs": verdicts, "state_sha256": hashes_of_states}
        write_json(out / "evidence.json", evidence)


if __name__ == "__main__":
    run_stage(main)
