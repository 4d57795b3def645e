"""Find where one way overtakes another, between which values the model is unsure, and
what is to be measured on either side.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from fitted import machine_of
from prediction_settings import Asked, Prediction
from rows import STUDY, all_settings

from minitrain.analysis.cost_model import Machine
from minitrain.analysis.crossover import (
    contenders,
    crossover,
    gain_of,
    sides,
    varied,
)
from minitrain.analysis.held_out import ratio_error
from minitrain.analysis.link_model import Network, network_of
from minitrain.core.errors import run_stage
from minitrain.core.files import read_csv, read_json, write_json
from minitrain.core.rate import LOOPBACK
from minitrain.core.setting import NO_SYNC, Setting, name_of, setting_of
from minitrain.core.study import load_study


def main() -> None:
    study = load_study(STUDY, Prediction)
    found = read_json(STUDY / "fit.json")
    machine, network = machine_of(found["machine"]), network_of(found["network"])
    table = read_csv(STUDY / "predictions.csv", "setting").set_index("setting")
    _, held_out = all_settings(study)
    answers = []
    for asked in study.crossovers:
        # without root there are no cables to ask about
        cabled = asked.over == "mbit" or setting_of(asked.setting).link != LOOPBACK
        if network.cable is None and cabled:
            continue
        error = ratio_error(ratios(asked, table, held_out))
        answers.append(answer(asked, machine, network, error))
    write_json(STUDY / "crossovers.json", answers)


def ratios(
    asked: Asked, table: pd.DataFrame, held_out: Sequence[Setting]
) -> list[tuple[float, float]]:
    # Settings that were held out, with what such a question compares them with.
    pairs: dict[tuple[str, ...], tuple[float, float]] = {}
    for setting in held_out:
        names = tuple(map(name_of, contenders(asked.question, setting)))
        if setting.sync != NO_SYNC and {*names} <= {*table.index}:
            columns = table.loc[list(names), ["predicted_ms", "measured_ms"]]
            ours, theirs = columns.to_numpy()
            pairs[names] = theirs[0] / ours[0], theirs[1] / ours[1]
    return [*pairs.values()]


def answer(
    asked: Asked, machine: Machine, network: Network, error: float
) -> Mapping[str, Any]:
    setting = setting_of(asked.setting)

    def gain(value: float) -> float:
        setting_there = varied(setting, asked.over, value)
        return gain_of(asked.question, setting_there, machine, network)

    ends = asked.smallest, asked.largest
    found = crossover(gain, *ends, error)
    tried = sides(asked.over, gain, found, ends, error, setting.processes)
    return {
        **asked.model_dump(mode="json"),
        "error": error,
        "at": found and found.at,
        "low": found and found.low,
        "high": found and found.high,
        "sides": {s: {"value": v, "gain": gain(v)} for s, v in tried.items()},
    }


if __name__ == "__main__":
    run_stage(main)
