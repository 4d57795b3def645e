"""Verifying a run against its replay and an independent reference.

    python -m stages.verify --backend gloo --world-size 2

Stores the data that the equivalence stage compares with the verdicts, so that it need
not depend on timings: gradients of step 0, early and final state, hashes.
"""

import argparse
import shutil
from dataclasses import asdict
from pathlib import Path

import torch

from minitrain.core.errors import run_stage
from minitrain.core.files import (
    atomic_path,
    each_row,
    read_json,
    sha256_file,
    write_json,
)
from minitrain.core.params import load_params
from minitrain.core.provenance import require_same_build
from minitrain.proof.evidence import read_evidence
from minitrain.proof.ladder import own_rungs
from minitrain.proof.witness.examine import examine_run
from minitrain.proof.witness.record import Record
from minitrain.train.config import config_of
from minitrain.train.step_record import save_tensors

PARAMS, CORPUS = Path("params.yaml"), Path("data/corpus.jsonl")
KEPT = ("hashes.jsonl", "losses.csv", "machine.json")
# prefixes of sampled tensors: gradients of step 0, state after the third step
COMPARED = ("0/gradients/", "early/state/")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=["gloo", "nccl"], required=True)
    parser.add_argument("--world-size", type=int, required=True)
    options = parser.parse_args()
    backend, world_size = options.backend, options.world_size
    folder = Path(f"data/runs/{backend}-{world_size}")
    params = load_params(PARAMS)
    torch.set_num_threads(params.train.threads_per_process)

    files = [folder / f"states/state-rank-{rank}.pt" for rank in range(world_size)]
    run = read_evidence(folder, files)
    replayed = None
    if backend == "gloo":
        replay = Path(f"data/runs/replay-{world_size}")
        replayed = read_evidence(replay, [replay / "state.pt"], sampled=False)
        machines = [path / "machine.json" for path in (folder, replay)]
        require_same_build({str(path): read_json(path, "torch") for path in machines})

    # The witness reads corpus and parameters itself and shares no code with minitrain,
    # so report a damaged corpus here first.
    for _ in each_row(CORPUS, "text"):
        pass
    shards = Path(f"data/shards/world-{world_size}")
    config = config_of(params, shards, world_size, steps=len(run.losses))
    guarantees = config.sync.guarantees
    witness = examine_run(
        CORPUS,
        PARAMS,
        Record(run.rows, run.losses, run.sampled, run.state),
        world_size,
        wire=getattr(torch, guarantees.wire) if guarantees.wire else None,
        exact=guarantees.are_exact,
        section=params.model,
    )
    rungs = own_rungs(config, run, replayed, witness)

    with atomic_path(Path("data/evidence") / folder.name) as out:
        out.mkdir()
        shutil.copy(files[0], out / "state.pt")
        for name in KEPT:
            shutil.copy(folder / name, out / name)
        compared = {k: t for k, t in run.sampled.items() if k.startswith(COMPARED)}
        save_tensors(out / "sampled.pt", compared)
        hashes_of_states = [sha256_file(file) for file in files]
        results = {name: asdict(rung) for name, rung in rungs.items()}
        evidence = {"rungs": results, "state_sha256": hashes_of_states}
        write_json(out / "evidence.json", evidence)


if __name__ == "__main__":
    run_stage(main)
