"""Train every arm over every link, round by round, with the training stage. All must
have the bits of their replay, of other links, and of the same ranks on one host.
"""

import shutil
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
from arms import ARMS, ONE_HOST, PLAIN
from children import usage_with_children
from copies_of_hosts import ROOT, begin, make_project
from machines import held_to, result, train
from network_settings import Network
from study_settings import load_study

from minitrain.core.cpu_load import load_of
from minitrain.core.errors import EvidenceError, run_stage
from minitrain.core.files import open_atomic, write_json
from minitrain.core.params import load_params
from minitrain.core.progress import progress
from minitrain.core.provenance import provenance

STUDY = Path(__file__).resolve().parent
MOST_HOSTS = max(arm.hosts for arm in ARMS)


def main() -> None:
    study = load_study(STUDY, Network)
    with tempfile.TemporaryDirectory(prefix="minitrain-network-") as name:
        folders = list(make_hosts(Path(name), study))
        links = {ONE_HOST: None, **study.links}
        every = product(range(study.num_rounds), links, ARMS)
        turns = [turn for turn in every if turn[2].goes_over(turn[1])]
        rows: list[dict[str, Any]] = []
        bits: dict[str, dict[str, Any]] = {}
        before = usage_with_children()
        for number, link, arm in progress(turns, "network", total=len(turns)):
            used = folders[: arm.hosts]
            begin(used, arm.settings)
            train(used, arm, links[link])
            found = result(used[0], arm, study.num_warmup_steps)
            if arm.name not in bits:
                bits[arm.name] = held_to(used[0], arm, found["state_sha256"])
            if found["state_sha256"] != bits[arm.name]["state_sha256"]:
                where = f"over {link}, round {number}"
                raise EvidenceError(f"{arm.name}: other bits {where}")
            del found["state_sha256"]
            rows.append({"round": number, "link": link, "arm": arm.name, **found})
        load = load_of([usage_with_children().since(before)])
    with open_atomic(STUDY / "runs.csv") as file:
        pd.DataFrame(rows).to_csv(file, index=False)
    write_json(STUDY / "bits.json", {"arms": bits})
    write_json(STUDY / "machine.json", {**origin(study), "load": load})


def make_hosts(inside: Path, study: Network) -> Iterator[Path]:
    # one folder per host, as without a shared file system
    first = inside / "host-0"
    first.mkdir()
    changes = {
        "gloo.world_sizes": sorted({arm.world_size for arm in ARMS}),
        "train.num_steps": study.num_steps,
        "train.num_warmup_steps": study.num_warmup_steps,
    }
    make_project(first, changes)
    yield first
    for number in range(1, MOST_HOSTS):
        copy = inside / f"host-{number}"
        yield shutil.copytree(first, copy, symlinks=True)


def origin(study: Network) -> dict[str, Any]:
    """Return machine, time and code of the measurement, and the training options."""
    params = load_params(ROOT / "params.yaml")
    steps = {"num_steps": study.num_steps, "num_warmup_steps": study.num_warmup_steps}
    return {
        **provenance(Path(__file__)),
        "model": params.model.model_dump(mode="json"),
        "train": {**params.train.model_dump(mode="json"), **PLAIN, **steps},
    }


if __name__ == "__main__":
    run_stage(main)
