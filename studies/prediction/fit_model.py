"""Fit the model to its training settings, with an interval for every coefficient.

Intervals are bootstrapped over rounds.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd
from cost_model import Machine
from fit_costs import fit_machine
from fit_links import Reduction, fit_network
from fitted import measured, reductions
from held_out import intervals
from link_model import Network
from link_rate import LOOPBACK
from prediction_settings import Prediction
from rows import STUDY, all_settings
from setting import Setting
from study_settings import load_study

from minitrain.core.errors import run_stage
from minitrain.core.files import read_csv, read_json, write_json


def main() -> None:
    study = load_study(STUDY, Prediction)
    origin = read_json(STUDY / "machine.json")
    turns = read_csv(STUDY / "turns.csv", "arm").set_index("round")
    trials = read_csv(STUDY / "trials.csv", "link").set_index("round")

    def fitted(rounds: Sequence[int]) -> tuple[Network, Machine]:
        return fit(study, origin, turns.loc[list(rounds)], trials.loc[list(rounds)])

    every = sorted(set(turns.index))
    network, machine = fitted(every)
    spread = intervals(lambda rounds: numbers(*fitted(rounds)), every, study.num_draws)
    shown = numbers(network, machine)
    coefficients = {
        name: {"value": shown[name], "low": low, "high": high}
        for name, (low, high) in spread.items()
    }
    parts = {"network": asdict(network), "machine": asdict(machine)}
    write_json(STUDY / "fit.json", {**parts, "coefficients": coefficients})


def fit(
    study: Prediction, origin: dict[str, Any], turns: pd.DataFrame, trials: pd.DataFrame
) -> tuple[Network, Machine]:
    settings, _ = all_settings(study)
    cores = origin["machine"]["cores"]
    seen = [r for r in reductions(trials) if is_fitted(r, study, settings)]
    network, crowding = fit_network(seen, cores, origin["burst_bytes"])
    steps = measured(turns, settings, study.steps_per_round)
    return network, fit_machine(steps, network, cores, crowding)


def is_fitted(one: Reduction, study: Prediction, settings: Sequence[Setting]) -> bool:
    links = {setting.link for setting in settings}
    return one.link in links and one.num_bytes not in study.held_out_sizes


def numbers(network: Network, machine: Machine) -> dict[str, float]:
    found = {"contention": machine.contention, "crowding": machine.crowding}
    found |= {"link.crowding.alpha": machine.link_crowding[0]}
    found |= {"link.crowding.beta": machine.link_crowding[1]}
    for name, costs in asdict(machine.compute).items():
        found |= {f"{name}.{number}": cost for number, cost in enumerate(costs)}
    found |= {f"overhead.{k}": v for k, v in asdict(machine.overheads).items()}
    # a resample may have one line when another has two
    last = network.loopback.lines[-1]
    found |= {f"{LOOPBACK}.alpha": last.alpha, f"{LOOPBACK}.beta": last.beta}
    if network.cable:
        found |= {f"cable.{k}": v for k, v in asdict(network.cable).items()}
    return found


if __name__ == "__main__":
    run_stage(main)
