"""Schema of studies/stragglers/params.yaml."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator
from study_settings import WorldSize

from minitrain.core.schema import Count, Distinct, PositiveFloat, Problem, Section, Seed

# the kernel's minimum quota is one millisecond
Share = Annotated[float, Field(ge=0.1, lt=1)]


class Stragglers(Section):
    world_size: WorldSize
    global_batch_size: Count
    num_steps: Count
    num_warmup_steps: Count
    num_trials: Count
    smallest_delay: PositiveFloat
    largest_delay: PositiveFloat
    cpu_shares: Distinct[Share]
    seed: Seed

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.global_batch_size % self.world_size:
            allowed = f"a multiple of world_size = {self.world_size}"
            raise Problem("global_batch_size", self.global_batch_size, allowed)
        if self.num_warmup_steps >= self.num_steps:
            allowed = f"below num_steps = {self.num_steps}"
            raise Problem("num_warmup_steps", self.num_warmup_steps, allowed)
        if self.smallest_delay > self.largest_delay:
            allowed = f"at most largest_delay = {self.largest_delay}"
            raise Problem("smallest_delay", self.smallest_delay, allowed)
        return self

    def train(self) -> dict[str, Any]:
        """Options of each trial in the section ``train`` of params.yaml."""
        keys = ("global_batch_size", "num_steps", "num_warmup_steps")
        asked = {key: getattr(self, key) for key in keys}
        # hashed steps are not timed
        return {**asked, "num_epochs": None, "hash_every": self.num_steps}
