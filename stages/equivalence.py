"""Join the evidence on all runs, compare them with one process, and refuse a breach.

    python -m stages.equivalence

A breach is written, and put in the place of the last result, before it ends the stage
with exit code 1; nothing downstream runs.
"""

from pathlib import Path

from minitrain.analysis.verdicts import as_dicts, verdict_of
from minitrain.core.errors import EvidenceError, run_stage
from minitrain.core.files import read_json, write_json
from minitrain.core.params import Params, load_params
from minitrain.core.provenance import require_same_build
from minitrain.proof.bits import Rung, not_run
from minitrain.proof.evidence import across_world_sizes, evidence_of
from minitrain.proof.promises import not_comparable, not_promised
from minitrain.proof.single_process import one_process, twin_of
from minitrain.proof.tolerances import Compared, one_process_rungs
from minitrain.report.refused import breach_line, refuse
from minitrain.sync.catalog import find_strategy

EVIDENCE = Path("data/evidence")
SHARDS = Path("data/shards/world-1")
METRICS = Path("metrics")
ONE_PROCESS = "gloo-1"
NAMES = ("", "_data", "_gradients", "_early")
RUNGS = [f"one_process{name}" for name in NAMES]


def main() -> None:
    params = load_params(Path("params.yaml"))
    # a GPU computes other bits, which nobody expects to be equal
    gloo = [run for run in params.runs() if run.startswith("gloo-")]
    files = [EVIDENCE / run / "machine.json" for run in gloo]
    require_same_build({str(file): read_json(file) for file in files})

    one = reference(params)
    verdicts = {}
    for run in params.runs():
        evidence = read_json(EVIDENCE / run / "evidence.json")
        rungs = {name: Rung(**rung) for name, rung in evidence["rungs"].items()}
        rungs |= against_one_process(run, params, one)
        rungs |= across_world_sizes(run, params, EVIDENCE)
        rungs |= not_comparable(rungs)
        described = as_dicts(rungs)
        verdict, rests_on = verdict_of(described)
        verdicts[run] = {
            "verdict": verdict,
            "rests_on": rests_on,
            **described,
            "state_sha256": evidence["state_sha256"],
        }
    write_json(METRICS / "equivalence.json", verdicts)
    if line := breach_line(verdicts):
        # nothing downstream runs, so what it published last time would stay
        refuse(verdicts, params, METRICS, Path("README.md"))
        raise EvidenceError(f"equivalence: {line}")


def is_stock(params: Params) -> bool:
    return params.train.sync == "ddp" and params.train.grad_accumulation_steps == 1


def reference(params: Params) -> Compared:
    # With stock DDP, gloo-1 is one process with the whole batch. Another strategy would
    # share what is to be found out; then, and without that run, one is trained here.
    if is_stock(params) and ONE_PROCESS in params.runs():
        return evidence_of(ONE_PROCESS, params, EVIDENCE)
    return one_process(params, SHARDS)


def against_one_process(run: str, params: Params, one: Compared) -> dict[str, Rung]:
    if is_stock(params) and run == ONE_PROCESS:
        return dict.fromkeys(RUNGS, not_run("it is the one process"))
    # trains one process more, but only where something is beyond the quick limits
    limits = (params.train, params.equivalence.atol, twin_of(params, SHARDS))
    found = one_process_rungs(evidence_of(run, params, EVIDENCE), one, *limits)
    strategy = find_strategy(params.train.sync)
    if "loss" not in strategy.promises:
        del found["loss"]
    return found | not_promised(found, strategy, params.train.precision)


if __name__ == "__main__":
    run_stage(main)
