"""Fit of the cost model's coefficients to measured steps, without other inputs.

Computation is fitted to single processes, the effects of several processes to arms that
do not communicate, and synchronization to the remaining time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from cost_model import Compute, Machine, Overheads, predict
from gpt_layers import (
    features,
    layers_of,
    num_parameters,
    num_tensors,
)
from least_squares import nonnegative
from link_model import Network
from setting import NO_SYNC, Setting

from minitrain.core.errors import UserError

# iterations until the hidden time, which delays buckets, and the exposed time converge
ITERATIONS = 5


@dataclass(frozen=True)
class Measured:
    """Measured seconds of a step of ``setting``; for a single process also of its
    phases: data, forward, backward, optimizer.
    """

    setting: Setting
    seconds: float
    parts: tuple[float, float, float, float] | None = None


def fit_machine(
    measured: Sequence[Measured],
    network: Network,
    cores: int,
    link_crowding: tuple[float, float] = (1.0, 1.0),
) -> Machine:
    """Fit the machine to the steps ``measured``.

    ``network`` has the links that settings name. Raises UserError if no single process
    was measured.
    """
    alone = [m for m in measured if m.setting.processes == 1]
    machine = Machine(cores, fit_compute(alone), link_crowding=link_crowding)
    silent = [m for m in measured if m.setting.sync == NO_SYNC]
    shared = [m for m in silent if 1 < m.setting.processes <= cores]
    if shared:
        machine = replace(machine, contention=_contention(shared, alone, machine))
    crowded = [m for m in silent if m.setting.processes > cores]
    if crowded:
        machine = replace(machine, crowding=_crowding(crowded, alone, machine))
    talking = [m for m in measured if m.setting.sync != NO_SYNC]
    if talking:
        overheads = fit_overheads(talking, silent, machine, network)
        machine = replace(machine, overheads=overheads)
    return machine


def fit_compute(alone: Sequence[Measured]) -> Compute:
    """Fit each phase of a step separately, with relative errors; raises UserError if no
    single process was measured with its phases.
    """
    found = [(m.setting, m.parts) for m in alone if m.parts is not None]
    if not found:
        raise UserError("cost model: needs settings of one process, with their parts")
    data, forward, backward, optimizer = zip(*(p for _, p in found), strict=True)
    rows = [_work(setting) for setting, _ in found]
    state = [
        [num_parameters(layers_of(s)), num_tensors(layers_of(s))] for s, _ in found
    ]
    batches = [[s.samples, s.micro_batches] for s, _ in found]
    return Compute(
        forward=_costs(rows, forward),
        backward=_costs(rows, backward),
        optimizer=_costs(state, optimizer),
        data=_costs(batches, data),
    )


def fit_overheads(
    talking: Sequence[Measured],
    silent: Sequence[Measured],
    machine: Machine,
    network: Network,
) -> Overheads:
    """Fit the time of ``talking`` steps beyond the same steps without communication
    (measured in ``silent``, else predicted) and beyond the exposed communication.
    """
    names = [field.name for field in fields(Overheads)]
    units = [replace(machine, overheads=Overheads(**{name: 1.0})) for name in names]
    # hidden time is proportional to each of these
    rows = [
        [
            predict(m.setting, unit, network.link(m.setting.link)).interference
            for unit in units
        ]
        for m in talking
    ]
    seconds = [m.seconds for m in talking]
    base = [_without(m.setting, silent, machine) for m in talking]
    found = Overheads()
    for _ in range(ITERATIONS):
        guess = replace(machine, overheads=found)
        steps = [
            predict(m.setting, guess, network.link(m.setting.link)) for m in talking
        ]
        left = np.subtract(seconds, base) - [step.exposed for step in steps]
        found = Overheads(*map(float, nonnegative(rows, left, seconds)))
    return found


def _work(setting: Setting) -> Sequence[float]:
    tokens = setting.samples / setting.micro_batches * setting.block_size
    total = features(layers_of(setting), tokens).sum(axis=0) * setting.micro_batches
    return [float(one) for one in total]


def _costs(
    rows: Sequence[Sequence[float]], seconds: Sequence[float]
) -> tuple[float, ...]:
    return tuple(map(float, nonnegative(rows, seconds)))


def _without(setting: Setting, silent: Sequence[Measured], machine: Machine) -> float:
    """Return the seconds of ``setting`` without communication, if possible measured."""
    same = setting.silent
    for one in silent:
        if one.setting == same:
            return one.seconds
    return predict(same, machine).seconds


def _slower(m: Measured, alone: Sequence[Measured], machine: Machine) -> float:
    """Return the slowdown relative to a single process."""
    return m.seconds / _without(m.setting.alone, alone, machine)


def _contention(
    shared: Sequence[Measured], alone: Sequence[Measured], machine: Machine
) -> float:
    excess = [
        (_slower(m, alone, machine) - 1)
        * (machine.cores - 1)
        / (m.setting.processes - 1)
        for m in shared
    ]
    return 1 + float(np.mean(excess))


def _crowding(
    crowded: Sequence[Measured], alone: Sequence[Measured], machine: Machine
) -> float:
    each = [
        (_slower(m, alone, machine) / machine.slowdown(m.setting.processes) - 1)
        / machine.excess(m.setting.processes)
        for m in crowded
    ]
    return float(np.mean(each))
