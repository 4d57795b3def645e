"""Predict every setting and every all-reduce from the fit alone, and compare."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
from cost_model import Machine, predict
from fit_model import is_fitted
from fitted import link_of, machine_of, measured, reductions
from link_model import Network, network_of
from prediction_settings import Prediction
from rows import STUDY, all_settings
from setting import FIELDS, name_of, new_in
from study_settings import load_study

from minitrain.core.errors import run_stage
from minitrain.core.files import open_atomic, read_csv, read_json

Row = dict[str, Any]


def main() -> None:
    study = load_study(STUDY, Prediction)
    found = read_json(STUDY / "fit.json")
    machine, network = machine_of(found["machine"]), network_of(found["network"])
    for name, rows in (
        ("predictions.csv", steps(study, machine, network)),
        ("reductions.csv", all_reduces(study, machine, network)),
    ):
        with open_atomic(STUDY / name) as file:
            pd.DataFrame(rows).to_csv(file, index=False, float_format="%.6g")


def steps(study: Prediction, machine: Machine, network: Network) -> Iterator[Row]:
    turns = read_csv(STUDY / "turns.csv", "arm")
    fitted, held_out = all_settings(study)
    for role, settings in (("fit", fitted), ("held out", held_out)):
        for one in measured(turns, settings, study.steps_per_round):
            setting = one.setting
            step = predict(setting, machine, link_of(network, setting))
            yield {
                "role": role,
                "setting": name_of(setting),
                **{name: getattr(setting, name) for name in FIELDS},
                "new": " ".join(new_in(setting, fitted)) if role != "fit" else "",
                **{f"{k}_ms": 1e3 * v for k, v in step._asdict().items()},
                "predicted_ms": 1e3 * step.seconds,
                "measured_ms": 1e3 * one.seconds,
                "error": step.seconds / one.seconds - 1,
            }


def all_reduces(study: Prediction, machine: Machine, network: Network) -> Iterator[Row]:
    settings, _ = all_settings(study)
    for one in reductions(read_csv(STUDY / "trials.csv", "link")):
        link = machine.link(network.link(one.link), one.world_size)
        seconds = link.seconds(one.num_bytes, one.world_size)
        yield {
            "role": "fit" if is_fitted(one, study, settings) else "held out",
            "link": one.link,
            "processes": one.world_size,
            "num_bytes": int(one.num_bytes),
            "predicted_us": 1e6 * seconds,
            "measured_us": 1e6 * one.seconds,
            "error": seconds / one.seconds - 1,
        }


if __name__ == "__main__":
    run_stage(main)
