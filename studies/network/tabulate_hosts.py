"""Write the table for the report: one process, two, and two hosts over each link, with
the all-reduce times predicted by the cost model of studies/prediction.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from arms import ONE_HOST
from expectations import expected_ms, fitted_on
from link_model import Network as Links
from link_rate import LOOPBACK
from network_settings import Network
from speeds import Speeds, named, read
from study_settings import load_study

from minitrain.core.errors import run_stage
from minitrain.core.files import open_atomic, read_json, write_json

STUDY = Path(__file__).resolve().parent
ROOT = STUDY.parents[1]
SPEED, REDUCED, EXPECTED = "tokens_per_s", "allreduce_p50_ms", "allreduce_expected_ms"


def main() -> None:
    rates = load_study(STUDY, Network).links
    bits = read_json(STUDY / "bits.json", "arms")["arms"]
    origin = read_json(STUDY / "machine.json", "machine", "model")
    links = fitted_on(origin["machine"])
    kept = {key: origin.pop(key) for key in ("model", "train")}
    speeds = read()
    table = pd.DataFrame(rows(speeds, rates, bits, links))
    judged = {**kept, **judged_by(speeds), "provenance": origin}
    # Written for the pipeline's report, but not an output of this stage, or else `dvc
    # repro` of the pipeline would run the study.
    for folder in (STUDY, ROOT / "metrics"):
        with open_atomic(folder / "hosts.csv") as file:
            table.to_csv(file, index=False)
        write_json(folder / "hosts.json", judged)


def judged_by(speeds: Speeds) -> dict[str, float]:
    return {
        "noise_floor": speeds.noise_floor(),
        "allreduce_noise_floor": speeds.noise_floor(REDUCED),
        "spread": speeds.spread(),
    }


def rows(
    speeds: Speeds, rates: dict[str, Any], bits: dict[str, Any], links: Links | None
) -> Iterator[dict[str, Any]]:
    shown = [("one process", ONE_HOST), ("ddp, one host", ONE_HOST)]
    for name, link in [*shown, *(("ddp", link) for link in speeds.links)]:
        arm, found = named(name), bits[name]
        rate = rates.get(link) or LOOPBACK
        tokens, reduced = (speeds.of(arm, link, x) for x in (SPEED, REDUCED))
        yield {
            "hosts": arm.hosts,
            "processes": arm.world_size,
            "link": None if link == ONE_HOST else link,
            "tokens_per_s": tokens.median(),
            "tokens_per_s_least": tokens.min(),
            "tokens_per_s_most": tokens.max(),
            EXPECTED: expected_ms(arm, found["bucket_bytes"], rate, links),
            "allreduce_ms": reduced.median(),
            "allreduce_ms_least": reduced.min(),
            "allreduce_ms_most": reduced.max(),
            "verdict": found["verdict"],
            "same_on_one_host": found["same_on_one_host"],
        }


if __name__ == "__main__":
    run_stage(main)
