"""How large a model is, and how much of a text it reads for that."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from minitrain.check.text_batches import LONGEST, length_for
from minitrain.model.factory import make_model
from minitrain.train.rng import (
    RandomState,
    random_state,
    restore_random_state,
    same_random_state,
    seed_everything,
    untouched_random_state,
)

STEPS = 3
# parameters of a model that takes two steps unless it is told how many: the fewest of
# which one starts from moments of the optimizer
LARGE, STEPS_OF_LARGE = 1 << 24, 2


class Measured:
    """A factory of which one model was built, for its ``num_parameters``. The next call
    gives that model, where it starts from the same random numbers and would thus build
    the same; another process is sent the factory alone.
    """

    def __init__(self, factory: Callable[[], nn.Module]) -> None:
        self._factory = factory
        with untouched_random_state():
            seed_everything(0)
            before = random_state()
            model = make_model(factory, "factory")
            after = random_state()
        self._first: tuple[RandomState, nn.Module, RandomState] | None
        self._first = before, model, after
        self.num_parameters = sum(p.numel() for p in model.parameters())

    def __call__(self) -> nn.Module:
        """A model."""
        first, self._first = self._first, None
        if first is None or not same_random_state(first[0], random_state()):
            return self._factory()
        restore_random_state(first[2])
        return first[1]

    def __reduce__(self) -> Any:
        return _itself, (self._factory,)


def _itself(factory: Any) -> Any:
    return factory


@dataclass(frozen=True)
class Reading:
    """``steps`` of lines of at most ``longest`` bytes; ``shortened`` says what is less
    than usual, if so. ``factory`` is to be built from.
    """

    factory: Any
    steps: int
    longest: int = LONGEST
    shortened: str = ""


def reading_for(factory: Any, size: int, steps: int | None) -> Reading:
    """What the model of ``factory`` reads in batches of ``size`` lines, in so many
    ``steps`` where they are told. What builds no model is for the check to refuse.
    """
    if isinstance(factory, nn.Module) or not callable(factory):
        return Reading(factory, STEPS if steps is None else steps)
    measured = Measured(factory)
    parameters = measured.num_parameters
    longest = length_for(parameters, size)
    less = [f"{size} lines of at most {longest} bytes"] if longest < LONGEST else []
    if steps is None and parameters > LARGE:
        steps = STEPS_OF_LARGE
        less.append(f"{steps} steps")
    millions = f": {parameters / 1e6:.0f} million parameters"
    shortened = ", ".join(less) + millions if less else ""
    return Reading(measured, STEPS if steps is None else steps, longest, shortened)
