"""Crossovers between two ways of training, and their uncertainty in the model."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from cost_model import Machine, predict
from link_model import Network
from setting import DDP, FP16, NO_SYNC, Setting

# quantities that vary: samples of a global batch, width, megabits per second
Over = Literal["batch", "width", "mbit"]
Question = Literal["processes", "compression"]
# a width is a multiple of its heads, and efficient as a multiple of this
WIDTH_STEP = 8

# number of grid points for the search of the first change of sign
POINTS = 400
HALVINGS = 60

# natural logarithm of the speed ratio, as a function of a parameter
Gain = Callable[[float], float]


@dataclass(frozen=True)
class Crossover:
    """Crossover: at ``at`` both are equally fast; ``above``: the first is faster beyond
    it.

    Between ``low`` and ``high`` the model is uncertain, given its error on held-out
    settings; None if that reaches beyond the range.
    """

    at: float
    low: float | None
    high: float | None
    above: bool


def crossover(
    gain: Gain, smallest: float, largest: float, error: float
) -> Crossover | None:
    """Return the first change of sign of ``gain`` from ``smallest`` to ``largest``
    (both positive), given an ``error`` of its values; None if there is none.
    """
    ratio = largest / smallest
    grid = [smallest * ratio ** (i / POINTS) for i in range(POINTS + 1)]
    signs = [gain(x) > 0 for x in grid]
    place = next((i for i in range(POINTS) if signs[i] != signs[i + 1]), None)
    if place is None:
        return None
    above = signs[place + 1]
    at = _root(gain, grid[place], grid[place + 1])
    down, up = [at, *reversed(grid[: place + 1])], [at, *grid[place + 1 :]]
    return Crossover(at, _sure(gain, down, error), _sure(gain, up, error), above)


def varied(setting: Setting, over: Over, value: float) -> Setting:
    """Return ``setting`` with ``value`` for the quantity that varies."""
    if over == "batch":
        return replace(setting, samples=value / setting.processes)
    if over == "width":
        return replace(setting, n_embd=value)
    return replace(setting, link=f"{value:.6f}mbit")


def contenders(question: Question, setting: Setting) -> tuple[Setting, Setting]:
    """Return the two settings of a question: ``setting`` and one process with the same
    global batch, or its buckets in float16 and in float32.
    """
    if question == "compression":
        return replace(setting, sync=FP16), replace(setting, sync=DDP)
    one = replace(setting.alone, samples=setting.samples * setting.processes)
    return setting, replace(one, micro_batches=1)


def gain_of(
    question: Question, setting: Setting, machine: Machine, network: Network
) -> float:
    """Return the natural logarithm of the speed ratio of the first to the second
    contender: the ratio of their step times, since their global batches are equal.
    """
    first, second = (
        predict(
            one, machine, None if one.sync == NO_SYNC else network.link(one.link)
        ).seconds
        for one in contenders(question, setting)
    )
    return math.log(second / first)


def measurable(over: Over, value: float, processes: int, *, up: bool) -> float:
    """Return the next measurable value upwards or downwards, at least the first one:
    whole samples per process, widths in steps, rates with two digits.
    """
    step: float = {"batch": processes, "width": WIDTH_STEP}.get(over, 0)
    step = step or 10.0 ** (math.floor(math.log10(value)) - 1)
    # a value that differs only by rounding is kept
    count = value / step
    whole = math.ceil(count - 1e-9) if up else math.floor(count + 1e-9)
    return max(1, whole) * step


def further(found: Crossover, clear: Crossover, ends: tuple[float, float]) -> Crossover:
    """Return ``found`` with the bounds of ``clear``, which used a larger error; a
    missing bound becomes the end of the range. A side without a claim is kept.
    """
    smallest, largest = ends
    return replace(
        found,
        low=found.low and (clear.low or smallest),
        high=found.high and (clear.high or largest),
    )


def sides(
    over: Over,
    gain: Gain,
    found: Crossover | None,
    ends: tuple[float, float],
    error: float,
    processes: int,
) -> dict[str, float]:
    """Return the points at which the claims of ``found`` can be tested: the next
    measurable values beyond ``low`` and ``high``; if ``found`` is None, which claims
    that the same one is faster everywhere, the ``ends``. None for a side without a
    claim.
    """
    low, high = (found.low, found.high) if found else ends
    inwards = found is None
    tried = {
        side: measurable(over, value, processes, up=up)
        for side, value, up in (("low", low, inwards), ("high", high, not inwards))
        if value is not None
    }
    # within rounding of the point at which the gain equals the error
    least = error * (1 - 1e-6)
    return {side: value for side, value in tried.items() if abs(gain(value)) >= least}


def _sure(gain: Gain, points: list[float], error: float) -> float | None:
    """Return the first point along ``points`` at which ``gain`` exceeds ``error``."""
    for near, far in pairwise(points):
        if abs(gain(far)) >= error:
            return _root(lambda x: abs(gain(x)) - error, near, far)
    return None


def _root(function: Gain, one: float, other: float) -> float:
    """Return the root of ``function`` between two positive numbers, by bisection."""
    rising = function(other) > 0
    for _ in range(HALVINGS):
        middle = math.sqrt(one * other)
        if (function(middle) > 0) == rising:
            other = middle
        else:
            one = middle
    return math.sqrt(one * other)
