"""The runs of a pipeline beside each other: which one is the measure of the others.

``evidence`` is a folder with one for each run, as the verify stage leaves it.
"""

from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from minitrain.analysis.verdicts import ITSELF
from minitrain.core.files import read_json, reading
from minitrain.core.params import Params
from minitrain.proof.bits import Rung, bits_rung, not_run
from minitrain.proof.evidence import Evidence, read_evidence
from minitrain.proof.ladder import Rungs, ladder
from minitrain.proof.single_process import run_one_process, run_twin
from minitrain.proof.tolerances import Twin
from minitrain.train.config import RunConfig
from minitrain.train.step_record import load_tensors

ONE_PROCESS = "gloo-1"


def is_one_process(run: str, params: Params) -> bool:
    """Whether ``run`` is one process with the whole batch. With stock DDP, gloo-1 is;
    another strategy would share what is to be found out.
    """
    train = params.train
    return (
        run == ONE_PROCESS
        and train.sync == "ddp"
        and train.grad_accumulation_steps == 1
    )


def reference_of(
    params: Params, config: RunConfig, evidence: Path
) -> tuple[Evidence, Twin]:
    """Return one process with the whole batch, a run that is there or trained here; and
    its twin, trained when it is asked for.
    """
    # what it records at other steps is compared with nothing
    alone = replace(config, hash_every=config.steps)
    twin = cache(partial(run_twin, alone, show="one process"))
    if any(is_one_process(run, params) for run in params.runs()):
        return _read(ONE_PROCESS, config, evidence), twin
    return run_one_process(alone, show="one process"), twin


def ladder_of_run(
    run: str,
    params: Params,
    config: RunConfig,
    one: Evidence,
    twin: Twin,
    evidence: Path,
) -> Rungs:
    """The whole ladder of ``run``, beside the other runs and what :func:`reference_of`
    gives. Raises OSError where the verify stage left nothing of a run.
    """
    file = evidence / run / "evidence.json"
    with reading(file):
        recorded = read_json(file)["rungs"]
        own = {name: Rung(**rung) for name, rung in recorded.items()}
    beside = ITSELF if is_one_process(run, params) else one
    return ladder(
        own,
        config,
        _read(run, config, evidence),
        beside,
        twin,
        params.equivalence.atol,
        across_world_sizes(run, params, config, evidence),
    )


def across_world_sizes(
    run: str, params: Params, config: RunConfig, evidence: Path
) -> Rungs:
    """What ``invariant`` is there for: the final state of ``run`` has the bits of the
    gloo run with the fewest processes. Of other strategies nobody asks it.
    """
    if not config.sync.guarantees.logical_shards:
        return {}
    fewest = f"gloo-{min(params.gloo.world_sizes)}"
    if run == fewest:
        return {"world_sizes": not_run("the others are held to it")}
    if not run.startswith("gloo-"):
        return {"world_sizes": not_run("a GPU computes other bits")}
    states = (load_tensors(evidence / one / "state.pt") for one in (fewest, run))
    return {"world_sizes": bits_rung(*states)}


def _read(run: str, config: RunConfig, evidence: Path) -> Evidence:
    folder = evidence / run
    start = dict(config.start_model(0).state_dict())
    return read_evidence(folder, [folder / "state.pt"], start=start)
