"""Find crossovers and the range in which the model is uncertain, and choose the
measurements on either side.
"""

from collections.abc import Mapping
from typing import Any

from cost_model import Machine
from crossover import crossover, further, gain_of, sides, varied
from fitted import machine_of
from grounds import Pairs, claimed_ends, pairs
from held_out import ratio_error
from link_model import Network, network_of
from link_rate import LOOPBACK
from prediction_settings import Asked, Prediction
from rows import STUDY, all_settings, is_cabled
from setting import setting_of
from study_settings import load_study

from minitrain.core.errors import run_stage
from minitrain.core.files import read_csv, read_json, write_json

# a claim is tested at a predicted gain of this multiple of its error
CLEARLY = 3


def main() -> None:
    study = load_study(STUDY, Prediction)
    found = read_json(STUDY / "fit.json")
    machine, network = machine_of(found["machine"]), network_of(found["network"])
    table = read_csv(STUDY / "predictions.csv", "setting").set_index("setting")
    _, held_out = all_settings(study)
    answers = []
    for asked in study.crossovers:
        # without root there are no cables
        cabled = asked.over == "mbit" or setting_of(asked.setting).link != LOOPBACK
        if network.cable is None and cabled:
            continue
        rests_on = pairs(asked.question, table, held_out)
        answers.append(answer(asked, machine, network, rests_on))
    write_json(STUDY / "crossovers.json", answers)


def answer(
    asked: Asked, machine: Machine, network: Network, rests_on: Pairs
) -> Mapping[str, Any]:
    error, bound = ratio_error(rests_on) or (None, None)
    said = {
        **asked.model_dump(mode="json"),
        "pairs": len(rests_on),
        "pairs_on_cables": sum(is_cabled(both[0]) for both in rests_on),
        # several pairs may share a reference
        "references": len({other for _, other in rests_on}),
        "bound": bound,
        "error": error,
    }
    if error is None:
        none = dict.fromkeys(("at", "low", "high"))
        return {**said, "answer": "too few pairs", **none, "sides": {}}
    setting = setting_of(asked.setting)

    def gain(value: float) -> float:
        setting_there = varied(setting, asked.over, value)
        return gain_of(asked.question, setting_there, machine, network)

    ends = asked.smallest, asked.largest
    found = crossover(gain, *ends, error)
    # at the edge of certainty, no measurement could distinguish the two
    clear = crossover(gain, *ends, CLEARLY * error)
    where = found and clear and further(found, clear, claimed_ends(gain, found, ends))
    tried = sides(asked.over, gain, where, ends, error, setting.processes)
    return {
        **said,
        "answer": "crosses" if found else "crosses nowhere",
        "at": found and found.at,
        "low": found and found.low,
        "high": found and found.high,
        "sides": {s: {"value": v, "gain": gain(v)} for s, v in tried.items()},
    }


if __name__ == "__main__":
    run_stage(main)
