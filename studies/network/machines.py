"""Training on several hosts, each a network namespace with its own folder."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
from arms import Arm
from copies_of_hosts import begin, stage, start, wait
from network_namespaces import Networks

from minitrain.analysis.account import summarize
from minitrain.analysis.rungs import rung_of
from minitrain.analysis.verdicts import verdict_of
from minitrain.core.errors import UserError
from minitrain.core.files import read_json, sha256_file

PORT = 29400


def train(folders: list[Path], arm: Arm, rate: str | None) -> None:
    """Train ``arm`` with one host per folder; the first host gets the results. Raises
    UserError with the output of a host that failed.
    """
    if arm.hosts == 1:
        train_alone(folders[0], arm)
        return
    with Networks(arm.hosts, rate) as networks:
        made = networks.hosts
        command = ["launch/host", "--nnodes", str(arm.hosts), "--rdzv-endpoint"]
        command += [f"{made[0].address}:{PORT}", "--world-size", str(arm.world_size)]
        pairs = zip(made, folders, strict=True)
        wait([start(own, host.command(command)) for host, own in pairs], arm.name)


def train_alone(folder: Path, arm: Arm) -> None:
    """Run all ranks of ``arm`` on one host, over loopback."""
    stage(folder, "train", "--backend", "gloo", "--world-size", str(arm.world_size))


def bucket_bytes(folder: Path, arm: Arm) -> list[int]:
    """Return the payload of each all-reduce of a step, as recorded in ``folder``."""
    hashes = folder / f"data/runs/gloo-{arm.world_size}/hashes.jsonl"
    rows = [json.loads(line) for line in hashes.read_text().splitlines()]
    layouts = [row["buckets"] for row in rows if row["kind"] == "buckets"]
    return [bucket["num_bytes"] for bucket in layouts[-1]] if layouts else []


def result(folder: Path, arm: Arm, num_warmup_steps: int) -> dict[str, Any]:
    """Return the speed, all-reduce time and state SHA-256 of a finished run."""
    run = folder / f"data/runs/gloo-{arm.world_size}"
    timings = pd.read_json(run / "timings.jsonl", lines=True)
    names = ("tokens_per_s", "step_mean_ms", "allreduce_p50_ms", "overlap")
    summary = summarize(timings, num_warmup_steps)
    return {
        **{name: summary[name] for name in names},
        "state_sha256": state_sha256(folder, arm),
    }


def state_sha256(folder: Path, arm: Arm) -> str:
    """Return the SHA-256 of the final state, which is equal on all ranks."""
    states = folder / f"data/runs/gloo-{arm.world_size}/states"
    found = {sha256_file(file) for file in states.iterdir()}
    if len(found) > 1:
        raise UserError(f"{arm.name}: ranks end with unlike states")
    return found.pop()


def rungs(folder: Path, world_size: int) -> dict[str, Any]:
    """Return the rungs of the run, its replay and the witness, with their verdict."""
    size = ["--world-size", str(world_size)]
    stage(folder, "replay", *size)
    stage(folder, "verify", "--backend", "gloo", *size)
    found = read_json(folder / f"data/evidence/gloo-{world_size}/evidence.json")
    ladder = {name: rung_of(rung) for name, rung in found["rungs"].items()}
    verdicts = {name: rung.verdict for name, rung in ladder.items()}
    return {"rungs": verdicts, "verdict": verdict_of(ladder).verdict}


def held_to(folder: Path, arm: Arm, sha256: str) -> dict[str, Any]:
    """Check the bits of a run: its own rungs, and equality with one host."""
    found = {"state_sha256": sha256, **rungs(folder, arm.world_size)}
    found["bucket_bytes"] = bucket_bytes(folder, arm)
    begin([folder], arm.settings)
    train_alone(folder, arm)
    return found | {"same_on_one_host": state_sha256(folder, arm) == sha256}
