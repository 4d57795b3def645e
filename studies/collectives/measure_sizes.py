"""Measure all-reduces of all sizes; a wrong result ends the study with one line."""

from pathlib import Path

import pandas as pd

from minitrain.errors import run_stage
from minitrain.files import open_atomic, write_json
from minitrain.provenance import provenance
from minitrain.studies import load_study
from minitrain.studies.collectives import Collectives
from minitrain.sweep import powers_of_4, sweep

STUDY = Path(__file__).resolve().parent


def main() -> None:
    study = load_study(STUDY, Collectives)
    powers = powers_of_4(study.smallest_bytes, study.largest_bytes)
    sizes = sorted({*powers, *study.goals})
    where = provenance(Path(__file__))
    rows = []
    for world_size in study.world_sizes:
        rows += sweep(world_size, sizes, study.seconds_per_size)
    with open_atomic(STUDY / "collectives.csv") as file:
        pd.DataFrame(rows).to_csv(file, index=False)
    write_json(STUDY / "provenance.json", where)


if __name__ == "__main__":
    run_stage(main)
