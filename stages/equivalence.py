"""Join the evidence on all runs, compare them with one process, and refuse a breach.

    python -m stages.equivalence

The verdicts are written before a breach ends the stage with exit code 1, so that they
can be read; nothing downstream runs.
"""

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from minitrain.equivalence import (
    Rung,
    breaches,
    gradients_rung,
    not_run,
    state_rung,
)
from minitrain.errors import EvidenceError, run_stage
from minitrain.files import read_json, write_json
from minitrain.hashes import load_tensors
from minitrain.params import Params, load_params

EVIDENCE = Path("data/evidence")
ONE_PROCESS = "gloo-1"


def main() -> None:
    params = load_params(Path("params.yaml"))
    verdicts, refused = {}, []
    for run in params.runs():
        evidence = read_json(EVIDENCE / run / "evidence.json")
        rungs = evidence["rungs"] | {
            name: rung.as_dict() for name, rung in against_one_process(run, params)
        }
        refused += [f"{run}: {line}" for line in breaches(rungs)]
        verdicts[run] = {**rungs, "state_sha256": evidence["state_sha256"]}
    write_json(Path("metrics/equivalence.json"), verdicts)
    if refused:
        raise EvidenceError(f"equivalence: {'; '.join(refused)}")


def against_one_process(run: str, params: Params) -> Iterator[tuple[str, Rung]]:
    names = ("one_process_gradients", "one_process")
    if run == ONE_PROCESS:
        yield from ((name, not_run("it is the one process")) for name in names)
        return
    if ONE_PROCESS not in params.runs():
        yield from ((name, not_run("gloo.world_sizes lacks 1")) for name in names)
        return
    (gradients, state), (reference_gradients, reference) = map(load, (run, ONE_PROCESS))
    atol = params.equivalence.atol
    yield names[0], gradients_rung(gradients, reference_gradients)
    yield names[1], state_rung(state, reference, params.train, atol)


def load(run: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    folder = EVIDENCE / run
    return load_tensors(folder / "gradients.pt"), load_tensors(folder / "state.pt")


if __name__ == "__main__":
    run_stage(main)
