"""Crossovers: known solutions, and the settings compared."""

import math

import pytest
from cost_model import Compute, Machine
from crossover import (
    Crossover,
    crossover,
    gain_of,
    measurable,
    sides,
    varied,
)
from link_model import Link, Network
from setting import Setting


def test_crossover_is_where_algebra_says() -> None:
    # one takes 10, the other x: equal at 10; uncertain within a factor of 2
    found = crossover(lambda x: math.log(x / 10), 1, 1000, math.log(2))
    assert found == Crossover(
        pytest.approx(10), pytest.approx(5), pytest.approx(20), True
    )
    # unsure up to the end: open
    found = crossover(lambda x: math.log(x / 10), 4, 100, math.log(3))
    assert found is not None
    assert (found.low, found.high) == (None, pytest.approx(30))
    assert crossover(lambda x: x, 1, 10, 0.1) is None
    found = crossover(lambda x: -math.log(x / 900), 1, 1000, 0.1)
    assert found is not None
    assert (found.at, found.above) == (pytest.approx(900), False)
    # no error leaves nothing unsure
    found = crossover(lambda x: x - 3, 1, 10, 0)
    assert found is not None
    assert found.low == pytest.approx(found.high)


def test_two_processes_pay_where_they_save_more_than_they_send() -> None:
    # a sample takes a second, nothing else does; 12 s to synchronize
    costs = Compute((0, 0, 0, 0), (0, 0, 0, 0), (0, 0), (1, 0))
    network, machine = Network(Link.of(6, 0)), Machine(2, costs)
    # one bucket, two messages
    setting = Setting("ddp", 2, 4, 128, 1, bucket_cap_mb=25)

    def gain_at(batch: float) -> float:
        there = varied(setting, "batch", batch)
        return gain_of("processes", there, machine, network)

    # b / 2 + 12 against b
    assert gain_at(48) == pytest.approx(math.log(48 / 36))
    found = crossover(gain_at, 2, 100, 0.1)
    assert found is not None
    assert found.at == pytest.approx(24)
    assert found.above


def test_what_can_be_measured() -> None:
    for over, value, up, expected in [
        ("batch", 5.1, False, 4),
        ("batch", 5.1, True, 6),
        ("batch", 4.0, True, 4),
        ("batch", 1.2, False, 2),
        ("width", 50, False, 48),
        ("width", 50, True, 56),
        ("mbit", 347, False, 340),
        ("mbit", 347, True, 350),
        ("mbit", 1234, True, 1300),
    ]:
        assert measurable(over, value, 2, up=up) == pytest.approx(expected)


def gain(x: float) -> float:
    return math.log(x / 10)


def test_claims_are_tried_beyond_what_is_unsure() -> None:
    found = crossover(gain, 1, 1000, math.log(1.5))
    # unsure from 6.67 to 15: two processes have an even number of samples
    assert sides("batch", gain, found, (1, 1000), math.log(1.5), 2) == {
        "low": 6,
        "high": 16,
    }
    # up to the end: nothing is claimed there
    found = crossover(gain, 1, 12, math.log(1.5))
    assert sides("batch", gain, found, (1, 12), math.log(1.5), 2) == {"low": 6}
    # without crossover both ends are claimed if they are sure
    assert sides("width", gain, None, (20, 100), 0.5, 2) == {"low": 24, "high": 96}
    # log 2.4 is 0.88, log 9.6 is 2.3
    assert sides("width", gain, None, (20, 100), 1.0, 2) == {"high": 96}
