"""Schema of studies/checkpoints/params.yaml."""

from typing import Self

from pydantic import model_validator
from study_settings import InterleavedAtOneSize

from minitrain.core.schema import Count, Problem, Some


class Checkpoints(InterleavedAtOneSize):
    every_steps: Some[Count]
    recorded_steps: Count
    num_loads: Count

    @model_validator(mode="after")
    def _every_turn_has_its_share(self) -> Self:
        for number, every in enumerate(self.every_steps):
            if self.steps_per_round % every:
                allowed = f"a divisor of steps_per_round = {self.steps_per_round}"
                raise Problem(f"every_steps.{number}", every, allowed)
        return self
