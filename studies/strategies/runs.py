"""Run the training stage with every strategy, and collect the step account, the
collective ledger, memory, and the ladder's verdict on the bits.
"""

import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
from interleaved import load_interleaved
from strategies_settings import Strategies
from subjects import in_memory

from minitrain.analysis.account import account, means, summarize
from minitrain.bench.ledger import count_step
from minitrain.check.data_parallel import examine
from minitrain.core.errors import UserError, run_stage
from minitrain.core.files import read_json, write_json
from minitrain.core.params import Params
from minitrain.core.progress import progress
from minitrain.core.provenance import provenance
from minitrain.harness.launcher import launch
from minitrain.sync.catalog import STRATEGIES
from minitrain.train.run import Job, train_rank

STUDY = Path(__file__).resolve().parent
ROOT = STUDY.parents[1]
SHARDS = ROOT / "data/shards"
# PowerSGD compresses from step 10 on
STEPS_OF_LADDER = 20


def main() -> None:
    study, params = load_interleaved(STUDY, Strategies)
    warmup = params.train.num_warmup_steps
    if study.num_steps <= warmup:
        raise UserError(
            f"{STUDY / 'params.yaml'}: strategies.num_steps = {study.num_steps}: must "
            f"be above train.num_warmup_steps of params.yaml, {warmup}"
        )
    params = params.with_train(num_steps=study.num_steps, num_epochs=None)
    found = {}
    for name in progress(list(STRATEGIES), "strategies", total=len(STRATEGIES)):
        chosen = params.with_train(sync=name)
        world_size = study.world_size
        counted, expected = launch(
            count_step, world_size, chosen, SHARDS, timeout_s=300
        )[0]
        run = in_memory(chosen, SHARDS / "world-1", STEPS_OF_LADDER)
        verdicts = {
            size: {
                rung: result.verdict
                for rung, result in examine(run, size).rungs.items()
            }
            for size in (world_size, 2 * world_size)
        }
        found[name] = {
            **timed(chosen, world_size),
            "traffic": {"counted": counted, "expected": expected},
            "verdicts": verdicts,
        }
    write_json(STUDY / "runs.json", {"runs": found, **provenance(Path(__file__))})


def timed(params: Params, world_size: int) -> dict[str, Any]:
    # A run of the training stage in a temporary folder.
    with tempfile.TemporaryDirectory(prefix="minitrain-strategies-") as name:
        folder = Path(name)
        shards = SHARDS / f"world-{world_size}"
        job = Job(params, "gloo", world_size, shards, folder, Path(__file__))
        launch(train_rank, world_size, job, "launch", timeout_s=600)
        timings = pd.read_json(folder / "timings.jsonl", lines=True)
        warmup = params.train.num_warmup_steps
        return {
            "peak_memory_mb": max(
                read_json(folder / "provenance.json")["peak_memory_mb"]
            ),
            "final_loss": float(pd.read_csv(folder / "losses.csv")["loss"].iloc[-1]),
            "summary": summarize(timings, warmup),
            "account": means(account(timings, warmup)),
        }


if __name__ == "__main__":
    run_stage(main)
