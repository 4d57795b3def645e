"""Join the evidence on all runs, compare them with one process, and refuse a breach.

    python -m stages.equivalence

A breach is written, and put in the place of the last result, before it ends the stage
with exit code 1; nothing downstream runs.
"""

from functools import partial
from pathlib import Path

from minitrain.equivalence import Rung, not_run
from minitrain.errors import EvidenceError, run_stage
from minitrain.evidence import across_world_sizes, evidence_of
from minitrain.files import read_json, write_json
from minitrain.one_process import nudged_state, one_process
from minitrain.params import Params, load_params
from minitrain.promises import not_promised, unproven
from minitrain.report.refused import breach_line, refuse
from minitrain.sync.strategies import find_strategy
from minitrain.tolerances import Compared, one_process_rungs

EVIDENCE = Path("data/evidence")
SHARDS = Path("data/shards/world-1")
METRICS = Path("metrics")
ONE_PROCESS = "gloo-1"
NAMES = ("", "_data", "_gradients", "_early")
RUNGS = [f"one_process{name}" for name in NAMES]


def main() -> None:
    params = load_params(Path("params.yaml"))
    one = reference(params)
    verdicts = {}
    for run in params.runs():
        evidence = read_json(EVIDENCE / run / "evidence.json")
        compared = against_one_process(run, params, one)
        compared |= across_world_sizes(run, params, EVIDENCE)
        rungs = evidence["rungs"] | {n: rung.as_dict() for n, rung in compared.items()}
        verdicts[run] = {**rungs, "state_sha256": evidence["state_sha256"]}
    write_json(METRICS / "equivalence.json", verdicts)
    if line := breach_line(verdicts):
        # nothing downstream runs, so what it published last time would stay
        refuse(verdicts, params, METRICS, Path("README.md"))
        raise EvidenceError(f"equivalence: {line}")


def is_stock(params: Params) -> bool:
    return params.train.sync == "ddp" and params.train.grad_accumulation_steps == 1


def reference(params: Params) -> Compared | None:
    # With stock DDP, gloo-1 is one process with the whole batch. With another strategy
    # it would share what is to be found out, so a plain process is trained here.
    if not is_stock(params):
        return one_process(params, SHARDS)
    return evidence_of(ONE_PROCESS, EVIDENCE) if ONE_PROCESS in params.runs() else None


def against_one_process(
    run: str, params: Params, one: Compared | None
) -> dict[str, Rung]:
    if one is None:
        return dict.fromkeys(RUNGS, not_run("gloo.world_sizes lacks 1"))
    if is_stock(params) and run == ONE_PROCESS:
        return dict.fromkeys(RUNGS, not_run("it is the one process"))
    # trains one process more, but only where the final state is beyond tolerance
    nudged = partial(nudged_state, params, SHARDS)
    limits = (params.train, params.equivalence.atol)
    found = one_process_rungs(evidence_of(run, EVIDENCE), one, *limits, nudged)
    strategy = find_strategy(params.train.sync)
    if "loss" not in strategy.promises:
        del found["loss"]
    found |= not_promised(found, strategy, params.train.precision)
    return found | unproven(found, strategy)


if __name__ == "__main__":
    run_stage(main)
