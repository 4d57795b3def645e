"""The global random generators that a loop uses between its steps."""

import random

import numpy as np
import pytest
import torch

from minitrain.recording.inputs import Generators

DRAWS = {
    "torch": lambda: torch.rand(()),
    "NumPy": np.random.rand,
    "random": random.random,
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_of_the_model_are_not_of_the_loop(name: str) -> None:
    """A step begins with its first forward pass; the loop draws before it."""
    generators, draw = Generators(), DRAWS[name]
    assert generators.drawn() == {}
    draw()
    generators.step_ends()
    assert generators.drawn() == {}
    generators.step_ends()
    draw()
    assert [*generators.drawn()] == [name]


def test_default_device_of_the_script_does_not_matter() -> None:
    generators = Generators()
    generators.step_ends()
    with torch.device("meta"):
        assert generators.drawn() == {}
        # a seed, as data loaders draw it
        torch.empty((), dtype=torch.int64, device="cpu").random_()
        assert generators.drawn() == {}
