"""Measure the settings for fitting and for validation, in the same rounds.

Cables need root and iproute2; without them, settings over cables are skipped, and
machine.json names the reason.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from link_rate import LOOPBACK
from network_namespaces import BURST_BYTES, why_not
from network_runs import TRIALS, Found, Sweep
from placed_arms import arm_of, run
from prediction_settings import Prediction
from rows import STUDY, all_settings, is_cabled
from study_settings import load_study

from minitrain.core.errors import run_stage
from minitrain.core.files import open_atomic, write_json
from minitrain.core.provenance import provenance

DIGITS = "%.7g"


def main() -> None:
    study = load_study(STUDY, Prediction)
    origin = provenance(Path(__file__))
    fitted, held_out = all_settings(study)
    # alternate fitted and held-out settings, so that neighbors are not measured
    # together
    settings = dict.fromkeys([*interleaved(fitted, held_out)])
    reason = why_not()
    sweeps = [
        Sweep(
            f"all-reduce, {one.processes}, {one.link}",
            one.processes,
            1,
            link=one.link,
            sizes=tuple(one.sizes),
        )
        for one in study.sweeps
        if not reason or one.link == LOOPBACK
    ]
    arms = [arm_of(s) for s in settings if not (reason and is_cabled(s))]
    turns, found, load = run([*sweeps, *arms], study.num_rounds, study.steps_per_round)
    write(STUDY / "turns.csv", turns)
    write(STUDY / "trials.csv", pd.DataFrame(trials(sweeps, found)))
    facts = {"burst_bytes": BURST_BYTES, "cables_left_out": reason, "load": load}
    write_json(STUDY / "machine.json", {**facts, **origin})


def interleaved(one: Sequence[Any], other: Sequence[Any]) -> Iterator[Any]:
    for number in range(max(len(one), len(other))):
        yield from (*one[number : number + 1], *other[number : number + 1])


def trials(sweeps: Sequence[Sweep], found: Sequence[Found]) -> Iterator[dict[str, Any]]:
    # an all-reduce lasts from its start on the first rank until its end on the last
    for sweep in sweeps:
        ranks = [
            [t for t in one.trials if t.arm == sweep.name]
            for one in found[: sweep.processes]
        ]
        in_a_round = TRIALS * len(sweep.sizes)
        for number, each in enumerate(zip(*ranks, strict=True)):
            yield {
                "round": number // in_a_round,
                "link": sweep.link,
                "processes": sweep.processes,
                "num_bytes": each[0].num_bytes,
                "seconds": max(t.end for t in each) - min(t.start for t in each),
            }


def write(path: Path, table: pd.DataFrame) -> None:
    with open_atomic(path) as file:
        table.to_csv(file, index=False, float_format=DIGITS)


if __name__ == "__main__":
    run_stage(main)
