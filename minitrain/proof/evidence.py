"""The evidence on each run, as the verify stage left it, and runs beside each other."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from minitrain.core.files import read_jsonl
from minitrain.core.params import Params
from minitrain.proof.bits import Rung, bits_rung, not_run
from minitrain.proof.ladder import Ran
from minitrain.proof.single_process import start_of
from minitrain.proof.tolerances import Compared
from minitrain.sync.catalog import find_strategy
from minitrain.sync.invariant import Invariant
from minitrain.train.recorder import load_tensors


def ran_in(folder: Path, states: Sequence[Path]) -> Ran:
    """What a run or a replay left in its folder; ``states`` are those of the ranks."""
    return Ran(
        rows=read_jsonl(folder / "hashes.jsonl"),
        losses=list(pd.read_csv(folder / "losses.csv")["loss"]),
        states=[load_tensors(file) for file in states],
    )


def evidence_of(run: str, params: Params, evidence: Path) -> Compared:
    """What runs are compared by, of ``gloo-W`` or ``nccl-W``; ``evidence`` is a folder
    with one for each run.
    """
    folder = evidence / run
    return Compared(
        rows=read_jsonl(folder / "hashes.jsonl"),
        gradients=load_tensors(folder / "gradients.pt"),
        early=load_tensors(folder / "early.pt"),
        state=load_tensors(folder / "state.pt"),
        losses=list(pd.read_csv(folder / "losses.csv")["loss"]),
        start=start_of(params),
    )


def across_world_sizes(run: str, params: Params, evidence: Path) -> dict[str, Rung]:
    """What ``invariant`` is there for: the final state of ``run`` has the bits of the
    gloo run with the fewest processes. Of other strategies nobody asks it.
    """
    if not issubclass(find_strategy(params.train.sync), Invariant):
        return {}
    fewest = f"gloo-{min(params.gloo.world_sizes)}"
    if run == fewest:
        return {"world_sizes": not_run("the others are held to it")}
    if not run.startswith("gloo-"):
        return {"world_sizes": not_run("a GPU computes other bits")}
    states = (load_tensors(evidence / one / "state.pt") for one in (fewest, run))
    return {"world_sizes": bits_rung(*states)}
