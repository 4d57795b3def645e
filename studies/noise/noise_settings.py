"""Schema of studies/noise/params.yaml."""

from typing import Annotated, Self

from pydantic import Field, model_validator
from study_settings import InterleavedAtOneSize

from minitrain.core.schema import Count, Problem, Seed, Some

Even = Annotated[int, Field(ge=6, multiple_of=2)]


class Noise(InterleavedAtOneSize):
    # number of styles in the plot
    strategies: Annotated[Some[str], Field(max_length=4)]
    # a pair, and another for its noise floor
    copies: Annotated[int, Field(ge=4)]
    numbers_of_rounds: Some[Even]
    num_choices: Count
    seed: Seed

    @model_validator(mode="after")
    def _something_is_judged(self) -> Self:
        if min(self.numbers_of_rounds) > self.num_rounds:
            allowed = f"a list with a number up to num_rounds = {self.num_rounds} in it"
            raise Problem("numbers_of_rounds", self.numbers_of_rounds, allowed)
        return self
