"""Comparing all runs with one process, and deciding the verdict on each.

    python -m stages.equivalence

On a breach, writes it in place of the previous report and exits with code 1, so that no
downstream stage runs.
"""

from pathlib import Path

import torch

from minitrain.analysis.verdicts import verdict_of
from minitrain.core.errors import EvidenceError, run_stage
from minitrain.core.files import open_atomic, read_json, write_json
from minitrain.core.params import load_params
from minitrain.core.provenance import require_same_build
from minitrain.proof.runs import ladders
from minitrain.proof.words import as_dicts, rests_on
from minitrain.report.breach import breach_line, refuse
from minitrain.train.config import config_of

EVIDENCE = Path("data/evidence")
SHARDS = Path("data/shards/world-1")
METRICS = Path("metrics")


def main() -> None:
    params = load_params(Path("params.yaml"))
    torch.set_num_threads(params.train.threads_per_process)
    # gloo runs only: a GPU computes different bits
    gloo = [run for run in params.runs() if run.startswith("gloo-")]
    files = [EVIDENCE / run / "machine.json" for run in gloo]
    require_same_build({str(file): read_json(file, "torch") for file in files})

    config = config_of(params, SHARDS, 1)
    verdicts = {}
    for run, rungs in ladders(params, config, EVIDENCE):
        evidence = EVIDENCE / run / "evidence.json"
        ruling = verdict_of(rungs)
        verdicts[run] = {
            "verdict": ruling.verdict,
            "rests_on": rests_on(ruling, rungs),
            **as_dicts(rungs),
            "state_sha256": read_json(evidence, "state_sha256")["state_sha256"],
        }
    write_json(METRICS / "equivalence.json", verdicts)
    if line := breach_line(verdicts):
        # downstream stages will not run, so replace their last results here
        refuse(verdicts, METRICS)
        raise EvidenceError(f"equivalence: {line}")
    # Constant output for stages that wait for the verdict but do not use it.
    with open_atomic(Path("data/not-refused.txt")) as file:
        file.write("no run is refused\n")


if __name__ == "__main__":
    run_stage(main)
