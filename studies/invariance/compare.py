"""Train with 1, 2, 4 and 8 processes under `invariant`, and compare the files' bytes.

Each run is the training stage's own, with its states, losses and hashes.
"""

import hashlib
import itertools
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from minitrain.data import tokenize_corpus, write_shards
from minitrain.errors import EvidenceError, run_stage
from minitrain.files import read_jsonl, sha256_file, write_json
from minitrain.launcher import launch
from minitrain.params import Params, load_params
from minitrain.progress import progress
from minitrain.run import Job, train_rank

STUDY = Path(__file__).resolve().parent
ROOT = STUDY.parents[1]
STRATEGIES = ("invariant", "invariant_shm")


def main() -> None:
    study = YAML(typ="safe").load((STUDY / "params.yaml").read_text())["invariance"]
    params = load_params(ROOT / "params.yaml").at(ROOT)
    steps = {"num_steps": study["num_steps"], "num_epochs": None}
    epochs = {"num_steps": None, "num_epochs": study["num_epochs"]}
    cases = {
        "adamw, default data": (steps, None),
        "adamw, epochs with an uneven tail": (epochs, study["num_samples"]),
        "sgd and accumulation, the same epochs": (
            {**epochs, "optimizer": "sgd", "grad_accumulation_steps": 2},
            study["num_samples"],
        ),
    }
    result: dict[str, Any] = {}
    for case, (changes, num_samples) in cases.items():
        for sync in STRATEGIES:
            changed = params.with_train(**changes, sync=sync, num_warmup_steps=1)
            sizes = progress(study["world_sizes"], f"{case}, {sync}")
            found = {size: fingerprint(changed, size, num_samples) for size in sizes}
            result.setdefault(case, {})[sync] = found
    write_json(STUDY / "invariance.json", result)
    for case, by_sync in result.items():
        prints = [p["sha256"] for found in by_sync.values() for p in found.values()]
        if any(p != prints[0] for p in prints):
            raise EvidenceError(f"invariance: {case}: not the same bytes: {prints}")


def fingerprint(params: Params, world_size: int, num_samples: int | None) -> Any:
    # Files of one run, in a folder that is gone afterwards: only their hashes stay.
    with tempfile.TemporaryDirectory(prefix="minitrain-invariance-") as name:
        folder = Path(name)
        with open(ROOT / "data/corpus.jsonl", encoding="utf-8") as lines:
            kept = itertools.islice(lines, num_samples)
            samples, _ = tokenize_corpus(kept, params.model.block_size, "split")
        write_shards(folder / "shards", samples, world_size)
        job = Job(params, "gloo", world_size, folder / "shards", folder / "run")
        start = time.perf_counter()
        launch(train_rank, world_size, job, "launch", timeout_s=1200)
        seconds = time.perf_counter() - start
        states = sorted((folder / "run" / "states").iterdir())
        rows = read_jsonl(folder / "run" / "hashes.jsonl")
        tensors = [r for r in rows if r["kind"] == "tensors" and r["rank"] == 0]
        gradients = json.dumps([r["gradients"] for r in tensors])
        return {
            "sha256": {
                "states": sorted({sha256_file(state) for state in states}),
                "losses": sha256_file(folder / "run" / "losses.csv"),
                "gradients": hashlib.sha256(gradients.encode()).hexdigest(),
            },
            "ranks": len(states),
            "seconds": round(seconds, 1),
        }


if __name__ == "__main__":
    run_stage(main)
