"""Join the evidence on all runs, compare them with one process, and refuse a breach.

    python -m stages.equivalence

The verdicts are written before a breach ends the stage with exit code 1, so that they
can be read; nothing downstream runs.
"""

from functools import partial
from pathlib import Path

import pandas as pd

from minitrain.equivalence import Rung, breaches, data_rung, not_run, own_to_each_rank
from minitrain.errors import EvidenceError, run_stage
from minitrain.files import read_json, read_jsonl, write_json
from minitrain.hashes import load_tensors
from minitrain.params import Params, load_params
from minitrain.promises import not_promised
from minitrain.sensitivity import nudged_state
from minitrain.sync.strategies import find_strategy
from minitrain.tolerances import (
    early_state_rung,
    final_state_rung,
    gradients_rung,
    loss_rung,
)

EVIDENCE = Path("data/evidence")
ONE_PROCESS = "gloo-1"
RUNGS = (
    "one_process_data",
    "one_process_gradients",
    "one_process_early",
    "one_process",
)


def main() -> None:
    params = load_params(Path("params.yaml"))
    verdicts, refused = {}, []
    for run in params.runs():
        evidence = read_json(EVIDENCE / run / "evidence.json")
        compared = against_one_process(run, params)
        rungs = evidence["rungs"] | {n: rung.as_dict() for n, rung in compared.items()}
        refused += [f"{run}: {line}" for line in breaches(rungs)]
        verdicts[run] = {**rungs, "state_sha256": evidence["state_sha256"]}
    write_json(Path("metrics/equivalence.json"), verdicts)
    if refused:
        raise EvidenceError(f"equivalence: {'; '.join(refused)}")


def against_one_process(run: str, params: Params) -> dict[str, Rung]:
    if run == ONE_PROCESS:
        return dict.fromkeys(RUNGS, not_run("it is the one process"))
    if ONE_PROCESS not in params.runs():
        return dict.fromkeys(RUNGS, not_run("gloo.world_sizes lacks 1"))
    ours, one = EVIDENCE / run, EVIDENCE / ONE_PROCESS
    hashes = [read_jsonl(folder / "hashes.jsonl") for folder in (ours, one)]
    data = data_rung(hashes[0], hashes[1])
    if why := own_to_each_rank(hashes[0]):
        return dict.fromkeys(RUNGS, not_run(why)) | {RUNGS[0]: data}
    gradients, early, final = (
        [load_tensors(folder / name) for folder in (ours, one)]
        for name in ("gradients.pt", "early.pt", "state.pt")
    )
    limits = (params.train, params.equivalence.atol)
    # trains one process more, but only where the final state is beyond tolerance
    nudged = partial(nudged_state, params, Path("data/shards/world-1"))
    rungs = (
        data,
        gradients_rung(gradients[0], gradients[1]),
        early_state_rung(early[0], early[1], *limits),
        final_state_rung(final[0], final[1], *limits, nudged),
    )
    found = dict(zip(RUNGS, rungs, strict=True))
    strategy = find_strategy(params.train.sync)
    if "loss" in strategy.promises:
        found["loss"] = loss_rung(*(losses(name) for name in (run, ONE_PROCESS)))
    return found | not_promised(found, strategy, params.train.precision)


def losses(run: str) -> list[float]:
    return list(pd.read_csv(EVIDENCE / run / "losses.csv")["loss"])


if __name__ == "__main__":
    run_stage(main)
