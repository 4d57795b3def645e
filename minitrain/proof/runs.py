"""The reference run (one process on whole batches), and the ladders of all runs.

The run ``gloo-1`` is the reference if it is stock DDP without accumulation; else it is
trained here, by the replay's loop and not by that of the ranks. Unstable training
amplifies rounding without bound, which no tolerance distinguishes from a fault; the
perturbed run (twin) measures it. ``evidence`` is the verify stage's folder.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from minitrain.analysis.rungs import Reason, not_run, rung_of
from minitrain.comm.torch_private import TorchDispatchMode
from minitrain.core.files import read_json, reading
from minitrain.core.params import Params
from minitrain.proof.bits import bits_rung
from minitrain.proof.evidence import Evidence, read_evidence
from minitrain.proof.ladder import Rungs, ladder
from minitrain.proof.replay import replay
from minitrain.train.config import RunConfig, whole_batches
from minitrain.train.precision import Precision
from minitrain.train.rng import untouched_random_state
from minitrain.train.step_record import load_tensors

ONE_PROCESS = "gloo-1"


def run_one_process(config: RunConfig, *, show: str = "") -> Evidence:
    """Train the reference run (one process, whole batches); return its evidence.
    ``show`` labels a progress bar (empty: none).
    """
    alone = whole_batches(config)
    start = dict(alone.start_model(0).state_dict())
    # sample the gradients of the first step; the early state is always included
    return replace(replay(alone, [], 1, show=show, sampled=[0]), start=start)


def run_twin(config: RunConfig, *, show: str = "") -> Evidence:
    """Train the perturbed run: :func:`run_one_process`, but from weights one ULP away
    in the coarsest dtype of the forward pass. Return its evidence.
    """
    coarsest = _coarsest_float(config)
    nudged = replace(config, factory=partial(_nudged, config.factory, coarsest))
    found = run_one_process(nudged, show=show)
    return replace(found, unit=torch.finfo(coarsest).eps)


def _nudged(factory: Callable[[], nn.Module], coarsest: torch.dtype) -> nn.Module:
    # moves each trained parameter one unit in the last place up; if it is cast to a
    # coarser type, every second element up and the others down by about one unit of it
    model, unit = factory(), torch.finfo(coarsest).eps
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.requires_grad:
                continue
            if torch.finfo(parameter.dtype).eps < unit:
                signs = torch.ones(parameter.numel(), dtype=parameter.dtype)
                signs[1::2] = -1
                parameter.mul_(1 + unit / 2 * signs.reshape(parameter.shape))
            else:
                up = torch.full_like(parameter, torch.inf)
                parameter.copy_(torch.nextafter(parameter, up))
    return model


def _coarsest_float(config: RunConfig) -> torch.dtype:
    # of the first forward pass, including casts by autocast and by the model
    seen = _Floats()
    with untouched_random_state():
        alone = whole_batches(replace(config, steps=1))
        model, batches = alone.start_model(0), alone.batches([0], 1)
        with Precision(config.precision).autocast(), seen:
            batches.loss(model, batches.micro_batches(0)[0].inputs)
    return max(seen.found, key=lambda dtype: torch.finfo(dtype).eps)


class _Floats(TorchDispatchMode):
    # collects the floating-point types of all results

    def __init__(self) -> None:
        super().__init__()
        self.found = {torch.float64}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        results = func(*args, **(kwargs or {}))
        for one in results if isinstance(results, tuple | list) else [results]:
            if isinstance(one, torch.Tensor) and one.is_floating_point():
                self.found.add(one.dtype)
        return results


def is_one_process(run: str, params: Params) -> bool:
    """Return whether ``run`` itself is the reference run: gloo-1 with stock DDP and no
    gradient accumulation. Other strategies share code with the runs under test.
    """
    train = params.train
    return (
        run == ONE_PROCESS
        and train.sync == "ddp"
        and train.grad_accumulation_steps == 1
    )


def ladders(
    params: Params, config: RunConfig, evidence: Path
) -> Iterator[tuple[str, Rungs]]:
    """Yield the name and the ladder (rungs, or check results, by name) of every run.
    ``config`` is of all runs, with the data of one rank; the reference run is trained
    here unless the run ``gloo-1`` is it. Raises OSError for a run without evidence,
    UserError for a damaged file or a loss that is not finite.
    """
    # records of other steps would not be compared
    alone = replace(config, hash_every=config.steps)
    twin = cache(partial(run_twin, alone, show="one process"))
    if any(is_one_process(run, params) for run in params.runs()):
        one = _read(ONE_PROCESS, config, evidence)
    else:
        one = run_one_process(alone, show="one process")
    for run in params.runs():
        file = evidence / run / "evidence.json"
        with reading(file):
            recorded = read_json(file)["rungs"]
            own = {name: rung_of(rung) for name, rung in recorded.items()}
        is_one = is_one_process(run, params)
        reference = Reason.IS_REFERENCE if is_one else one
        found, atol = _read(run, config, evidence), params.equivalence.atol
        rungs = ladder(own, config, found, reference, twin, atol)
        yield run, rungs | across_world_sizes(run, params, config, evidence)


def across_world_sizes(
    run: str, params: Params, config: RunConfig, evidence: Path
) -> Rungs:
    """Return the rung ``world_sizes``: EQUAL if ``run`` ends with the bits of the gloo
    run with the fewest processes. Empty if the strategy does not promise that.
    """
    if not config.sync.guarantees.logical_shards:
        return {}
    fewest = f"gloo-{min(params.gloo.world_sizes)}"
    if run == fewest:
        return {"world_sizes": not_run("the other runs are compared with this one")}
    if not run.startswith("gloo-"):
        return {"world_sizes": not_run("a GPU computes different bits")}
    states = (load_tensors(evidence / one / "state.pt") for one in (fewest, run))
    return {"world_sizes": bits_rung(*states)}


def _read(run: str, config: RunConfig, evidence: Path) -> Evidence:
    folder = evidence / run
    start = dict(config.start_model(0).state_dict())
    return read_evidence(folder, [folder / "state.pt"], start=start)
