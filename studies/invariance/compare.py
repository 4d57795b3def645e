"""Train with 1, 2, 4 and 8 processes under `invariant`, and compare the outputs."""

import hashlib
import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

from interleaved import only_ddp
from invariance_settings import Invariance
from study_settings import load_study

from minitrain.core.errors import EvidenceError, UserError, run_stage
from minitrain.core.files import each_row, read_jsonl, sha256_file, write_json
from minitrain.core.params import Params, Train, load_params
from minitrain.core.progress import progress
from minitrain.core.provenance import provenance
from minitrain.data.shards import tokenize_corpus, write_shards
from minitrain.harness.launcher import launch
from minitrain.train.run import Job, train_rank

SCRIPT = Path(__file__).resolve()
STUDY, ROOT = SCRIPT.parent, SCRIPT.parents[2]
STRATEGIES = ("invariant", "invariant_shm")


def main() -> None:
    study = load_study(STUDY, Invariance)
    params = only_ddp(load_params(ROOT / "params.yaml").at(ROOT))
    steps: dict[str, Any] = {"num_steps": study.num_steps, "num_epochs": None}
    epochs: dict[str, Any] = {"num_steps": None, "num_epochs": study.num_epochs}
    sgd = {**epochs, "optimizer": "sgd", "grad_accumulation_steps": 2}
    cases = {
        "adamw, default data": (steps, None),
        "adamw, epochs with an uneven tail": (epochs, study.num_samples),
        "sgd and accumulation, the same epochs": (sgd, study.num_samples),
    }
    result: dict[str, Any] = {}
    for case, (changes, num_samples) in cases.items():
        for sync in STRATEGIES:
            changed = params.with_train(**changes, sync=sync, num_warmup_steps=1)
            sizes = progress(study.world_sizes, f"{case}, {sync}")
            found = {size: fingerprint(changed, size, num_samples) for size in sizes}
            result.setdefault(case, {})[sync] = found
    for case, by_sync in result.items():
        prints = [p["sha256"] for found in by_sync.values() for p in found.values()]
        if any(p != prints[0] for p in prints):
            raise EvidenceError(f"invariance: {case}: not the same bytes: {prints}")
    write_json(STUDY / "invariance.json", {"cases": result, **provenance(SCRIPT)})


def require_empty_shards(num_samples: int, train: Train) -> None:
    tail = num_samples % train.global_batch_size
    if not 0 < tail < train.logical_shards:
        raise UserError(
            f"{STUDY / 'params.yaml'}: invariance.num_samples leaves a last batch of "
            f"{tail}: must be 1 to {train.logical_shards - 1}, so that a shard has none"
        )


def fingerprint(params: Params, world_size: int, num_samples: int | None) -> Any:
    # The files of a run are temporary; only their hashes are kept.
    with tempfile.TemporaryDirectory(prefix="minitrain-invariance-") as name:
        shards, run = Path(name, "shards"), Path(name, "run")
        kept = itertools.islice(each_row(ROOT / "data/corpus.jsonl"), num_samples)
        texts = (row["text"] for row in kept)
        samples, _ = tokenize_corpus(texts, params.model.block_size, "split")
        if num_samples is not None:
            require_empty_shards(len(samples), params.train)
        write_shards(shards, samples, world_size)
        job = Job(params, "gloo", world_size, shards, run, SCRIPT)
        # a run of the training stage, with states, losses and hashes
        launch(train_rank, world_size, job, "launch", timeout_s=1200)
        states = sorted((run / "states").iterdir())
        rows = read_jsonl(run / "hashes.jsonl")
        tensors = [r for r in rows if r["kind"] == "tensors" and r["rank"] == 0]
        gradients = json.dumps([r["gradients"] for r in tensors])
        return {
            "sha256": {
                "states": sorted({sha256_file(state) for state in states}),
                "losses": sha256_file(run / "losses.csv"),
                "gradients": hashlib.sha256(gradients.encode()).hexdigest(),
            },
            "ranks": len(states),
        }


if __name__ == "__main__":
    run_stage(main)
