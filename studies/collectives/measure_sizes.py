"""Measure all-reduces of all sizes; a wrong result fails the study with one line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from collectives_settings import Collectives
from study_settings import load_study
from sweep import powers_of_4, sweep

from minitrain.core.errors import run_stage
from minitrain.core.files import open_atomic, write_json
from minitrain.core.provenance import provenance

STUDY = Path(__file__).resolve().parent
ROOT = STUDY.parents[1]
WHERE = ("cpu", "cores", "torch")
WHAT = ["backend", "world_size", "num_bytes", "p50_us"]


def main() -> None:
    study = load_study(STUDY, Collectives)
    powers = powers_of_4(study.smallest_bytes, study.largest_bytes)
    sizes = sorted({*powers, *study.goals})
    where = provenance(Path(__file__))
    rows = []
    for world_size in study.world_sizes:
        rows += sweep(world_size, sizes, study.seconds_per_size)
    table = pd.DataFrame(rows)
    with open_atomic(STUDY / "collectives.csv") as file:
        table.to_csv(file, index=False)
    write_json(STUDY / "provenance.json", where)
    publish(table, where)


def publish(table: pd.DataFrame, where: Mapping[str, Any]) -> None:
    """Write medians for the pipeline's report; not an output of this stage, or else
    `dvc repro` of the pipeline would run the study.
    """
    origin = {key: where["machine"][key] for key in WHERE}
    origin["measured_at"] = where["measured_at"]
    with open_atomic(ROOT / "metrics" / "collectives.csv") as file:
        table[WHAT].assign(**origin).to_csv(file, index=False)


if __name__ == "__main__":
    run_stage(main)
