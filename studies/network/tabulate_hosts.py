"""Give the report its table: one process, two, and two hosts over each link, with the
all-reduces that the cost model of studies/prediction expects there.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from arms import ONE_HOST, Arm
from network_settings import Network
from speeds import named, read

from minitrain.analysis.cost_model import channel
from minitrain.analysis.link_model import Network as Links
from minitrain.analysis.link_model import network_of
from minitrain.core.errors import run_stage
from minitrain.core.files import open_atomic, read_json, write_json
from minitrain.core.rate import LOOPBACK
from minitrain.core.study import load_study

STUDY = Path(__file__).resolve().parent
ROOT = STUDY.parents[1]
FIT = STUDY.parent / "prediction"
# what both must be measured on, so that one can be expected of the other
MACHINE = ("cpu", "cores", "torch")


def main() -> None:
    rates = load_study(STUDY, Network).links
    bits = read_json(STUDY / "bits.json", "arms")["arms"]
    origin = read_json(STUDY / "machine.json", "machine", "train_code_sha256")
    links = fitted_on(origin["machine"])
    kept = {key: origin.pop(key) for key in ("model", "train", "train_code_sha256")}
    table = pd.DataFrame(rows(rates, bits, links))
    # The report of the pipeline shows it too, but as no output of this stage: else
    # `dvc repro` of the pipeline would run the study.
    for folder in (STUDY, ROOT / "metrics"):
        with open_atomic(folder / "hosts.csv") as file:
            table.to_csv(file, index=False)
        write_json(folder / "hosts.json", {**kept, "provenance": origin})


def fitted_on(machine: dict[str, Any]) -> Links | None:
    """The links of the cost model, if they were measured on such a ``machine``."""
    there = read_json(FIT / "machine.json", "machine")["machine"]
    if any(there[key] != machine[key] for key in MACHINE):
        return None
    return network_of(read_json(FIT / "fit.json", "network")["network"])


def rows(
    rates: dict[str, str | None], bits: dict[str, Any], links: Links | None
) -> Iterator[dict[str, Any]]:
    speeds = read()
    shown = [("one process", ONE_HOST), ("ddp, one host", ONE_HOST)]
    for name, link in [*shown, *(("ddp", link) for link in speeds.links)]:
        arm, found = named(name), bits[name]
        rate = rates.get(link) or LOOPBACK
        tokens = speeds.of(arm, link)
        yield {
            "hosts": arm.hosts,
            "processes": arm.world_size,
            "link": None if link == ONE_HOST else link,
            "tokens_per_s": tokens.median(),
            "tokens_per_s_least": tokens.min(),
            "tokens_per_s_most": tokens.max(),
            "allreduce_expected_ms": expected_ms(
                arm, found["bucket_bytes"], rate, links
            ),
            "allreduce_ms": speeds.median(arm, link, "allreduce_p50_ms"),
            "verdict": found["verdict"],
            "same_on_one_host": found["same_on_one_host"],
        }


def expected_ms(
    arm: Arm, num_bytes: list[int], rate: str, links: Links | None
) -> float | None:
    # all at once, on a link that has rested: what is waited for is no part of it
    if links is None or arm.world_size == 1 or (rate != LOOPBACK and not links.cable):
        return None
    ready = [0.0] * len(num_bytes)
    return 1e3 * channel(ready, num_bytes, links.link(rate), arm.world_size)


if __name__ == "__main__":
    run_stage(main)
