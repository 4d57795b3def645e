"""Train every arm over every link, round by round, with the pipeline's own stage; hold
each to its bits: those of its replay, of every link, and of the same ranks on one host.
"""

import shutil
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
from arms import ARMS, PLAIN, Arm
from copies_of_hosts import make_project, set_params, stage
from machines import result, rungs, train
from network_settings import Network

from minitrain.core.errors import EvidenceError, run_stage
from minitrain.core.files import open_atomic, write_json
from minitrain.core.progress import progress
from minitrain.core.provenance import provenance
from minitrain.core.study import load_study

STUDY = Path(__file__).resolve().parent
MOST_HOSTS = max(arm.hosts for arm in ARMS)


def main() -> None:
    study = load_study(STUDY, Network)
    with tempfile.TemporaryDirectory(prefix="minitrain-network-") as name:
        folders = list(make_hosts(Path(name), study))
        turns = list(product(range(study.num_rounds), study.links, ARMS))
        rows: list[dict[str, Any]] = []
        bits: dict[str, dict[str, Any]] = {}
        for number, link, arm in progress(turns, "network", total=len(turns)):
            used = folders[: arm.hosts]
            begin(used, arm)
            train(used, arm, study.links[link])
            found = result(used[0], arm, study.num_warmup_steps)
            if arm.name not in bits:
                bits[arm.name] = held_to(used[0], arm, study, found["state_sha256"])
            if found["state_sha256"] != bits[arm.name]["state_sha256"]:
                raise EvidenceError(
                    f"{arm.name}: other bits over {link}, round {number}"
                )
            del found["state_sha256"]
            rows.append({"round": number, "link": link, "arm": arm.name, **found})
    with open_atomic(STUDY / "runs.csv") as file:
        pd.DataFrame(rows).to_csv(file, index=False)
    write_json(STUDY / "bits.json", {"arms": bits})
    write_json(STUDY / "machine.json", provenance(Path(__file__)))


def make_hosts(inside: Path, study: Network) -> Iterator[Path]:
    # one folder for each host, as on machines that share no file system
    first = inside / "host-0"
    first.mkdir()
    changes = {
        "gloo.world_sizes": [1, *sorted({arm.world_size for arm in ARMS})],
        "train.num_steps": study.num_steps,
        "train.num_warmup_steps": study.num_warmup_steps,
    }
    make_project(first, changes)
    yield first
    for number in range(1, MOST_HOSTS):
        copy = inside / f"host-{number}"
        yield shutil.copytree(first, copy, symlinks=True)


def begin(folders: list[Path], arm: Arm) -> None:
    changes = {f"train.{key}": v for key, v in {**PLAIN, **arm.changes}.items()}
    for folder in folders:
        shutil.rmtree(folder / "data/runs", ignore_errors=True)
        set_params(folder, changes)


def held_to(folder: Path, arm: Arm, study: Network, sha256: str) -> dict[str, Any]:
    verdicts = rungs(folder, arm.world_size)
    begin([folder], arm)
    size = str(arm.world_size)
    stage(folder, "train", "--backend", "gloo", "--world-size", size)
    alone = result(folder, arm, study.num_warmup_steps)
    same = alone["state_sha256"] == sha256
    return {"state_sha256": sha256, "same_on_one_host": same, "rungs": verdicts}


if __name__ == "__main__":
    run_stage(main)
