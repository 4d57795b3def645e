"""One training on several hosts, each a network namespace with a folder of its own."""

from pathlib import Path
from typing import Any

import pandas as pd
from arms import Arm
from copies_of_hosts import stage, start, wait

from minitrain.analysis.account import summarize
from minitrain.bench.networks import Networks
from minitrain.core.errors import UserError
from minitrain.core.files import read_json, sha256_file

PORT = 29400


def train(folders: list[Path], arm: Arm, rate: str | None) -> None:
    """Train as ``arm`` says, on a host for each folder; the first one gets the results.
    UserError with what was said, where a host fails.
    """
    with Networks(arm.hosts, rate) as networks:
        made = networks.hosts
        command = ["launch/host", "--nnodes", str(arm.hosts), "--rdzv-endpoint"]
        command += [f"{made[0].address}:{PORT}", "--world-size", str(arm.world_size)]
        pairs = zip(made, folders, strict=True)
        wait([start(own, host.command(command)) for host, own in pairs], arm.name)


def result(folder: Path, arm: Arm, num_warmup_steps: int) -> dict[str, Any]:
    """Speed, all-reduce time and the state's SHA-256 of a run that was made."""
    run = folder / f"data/runs/gloo-{arm.world_size}"
    timings = pd.read_json(run / "timings.jsonl", lines=True)
    states = {sha256_file(file) for file in (run / "states").iterdir()}
    if len(states) > 1:
        raise UserError(f"{arm.name}: ranks end with unlike states")
    names = ("tokens_per_s", "step_mean_ms", "allreduce_p50_ms", "overlap")
    summary = summarize(timings, num_warmup_steps)
    return {**{name: summary[name] for name in names}, "state_sha256": states.pop()}


def rungs(folder: Path, world_size: int) -> dict[str, str]:
    """Verdicts of the run's own rungs: its replay's and the witness's."""
    size = ["--world-size", str(world_size)]
    stage(folder, "replay", *size)
    stage(folder, "verify", "--backend", "gloo", *size)
    found = read_json(folder / f"data/evidence/gloo-{world_size}/evidence.json")
    return {name: rung["verdict"] for name, rung in found["rungs"].items()}
