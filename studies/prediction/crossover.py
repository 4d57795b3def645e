"""Where one way of training overtakes another, and how sure a model can be of it."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from cost_model import Machine, predict
from link_model import Network
from setting import DDP, FP16, NO_SYNC, Setting

# what may vary: samples of a global batch, width, megabits a second
Over = Literal["batch", "width", "mbit"]
Question = Literal["processes", "compression"]
# a width is a multiple of its heads, and fast as a multiple of this
WIDTH_STEP = 8

# the grid on which a first change of sign is looked for
POINTS = 400
HALVINGS = 60

# natural logarithm of how many times as fast the one is, over a parameter
Gain = Callable[[float], float]


@dataclass(frozen=True)
class Crossover:
    """At ``at`` both are equally fast; ``above``: beyond it the one is faster.

    Between ``low`` and ``high`` the model is not sure, as wrong as it was on settings
    that it was not fitted on; None where that reaches beyond what was asked for.
    """

    at: float
    low: float | None
    high: float | None
    above: bool


def crossover(
    gain: Gain, smallest: float, largest: float, error: float
) -> Crossover | None:
    """The first change of sign of ``gain`` from ``smallest`` to ``largest`` (both
    positive), where each of its values may be wrong by ``error``; None without one.
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
    """``setting`` with ``value`` of what varies."""
    if over == "batch":
        return replace(setting, samples=value / setting.processes)
    if over == "width":
        return replace(setting, n_embd=value)
    return replace(setting, link=f"{value:.6f}mbit")


def contenders(question: Question, setting: Setting) -> tuple[Setting, Setting]:
    """What a question is about, and what it is compared with: ``setting`` with one
    process for the same global batch, or its buckets in float16 with float32.
    """
    if question == "compression":
        return replace(setting, sync=FP16), replace(setting, sync=DDP)
    one = replace(setting.alone, samples=setting.samples * setting.processes)
    return setting, replace(one, micro_batches=1)


def gain_of(
    question: Question, setting: Setting, machine: Machine, network: Network
) -> float:
    """The natural logarithm of how many times as fast the first contender is: their
    global batches are the same, so it is the ratio of their steps.
    """
    first, second = (
        predict(
            one, machine, None if one.sync == NO_SYNC else network.link(one.link)
        ).seconds
        for one in contenders(question, setting)
    )
    return math.log(second / first)


def measurable(over: Over, value: float, processes: int, *, up: bool) -> float:
    """The next value that can be measured, upwards or downwards, at least the first
    one: whole samples for each process, widths in steps, rates with two digits.
    """
    step: float = {"batch": processes, "width": WIDTH_STEP}.get(over, 0)
    step = step or 10.0 ** (math.floor(math.log10(value)) - 1)
    # what is one but for rounding stays
    count = value / step
    whole = math.ceil(count - 1e-9) if up else math.floor(count + 1e-9)
    return max(1, whole) * step


def further(found: Crossover, clear: Crossover, ends: tuple[float, float]) -> Crossover:
    """``found`` with the bounds of ``clear``, which a larger error gave; where that has
    none, as far as what was asked for goes. A side of which nothing is claimed stays.
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
    """Where the claims that ``found`` makes can be tried: the next values that can be
    measured ``low`` and ``high`` of what is unsure; of None, which claims that the same
    one is faster everywhere, within ``ends``. None on a side where nothing is claimed.
    """
    low, high = (found.low, found.high) if found else ends
    inwards = found is None
    tried = {
        side: measurable(over, value, processes, up=up)
        for side, value, up in (("low", low, inwards), ("high", high, not inwards))
        if value is not None
    }
    # no more than rounding away from where the gain is the error
    least = error * (1 - 1e-6)
    return {side: value for side, value in tried.items() if abs(gain(value)) >= least}


def _sure(gain: Gain, points: list[float], error: float) -> float | None:
    """From the crossing on along ``points``: where ``gain`` is beyond ``error``."""
    for near, far in pairwise(points):
        if abs(gain(far)) >= error:
            return _root(lambda x: abs(gain(x)) - error, near, far)
    return None


def _root(function: Gain, one: float, other: float) -> float:
    """Where ``function`` changes its sign between two positive numbers: bisection."""
    rising = function(other) > 0
    for _ in range(HALVINGS):
        middle = math.sqrt(one * other)
        if (function(middle) > 0) == rising:
            other = middle
        else:
            one = middle
    return math.sqrt(one * other)
