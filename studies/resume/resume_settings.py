"""Schema of studies/resume/params.yaml."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from minitrain.core.schema import Count, Distinct, Problem, Section, Some

AtLeastTwo = Annotated[int, Field(ge=2)]


class Resume(Section):
    num_steps: Annotated[int, Field(ge=20)]
    steps_per_epoch: AtLeastTwo
    stop_every: Count
    stop_after_every_step: Distinct[str]
    in_new_processes: Some[Count]

    @model_validator(mode="after")
    def _stops_are_before_the_end(self) -> Self:
        if max(self.in_new_processes) >= self.num_steps:
            allowed = f"a list of steps below num_steps = {self.num_steps}"
            raise Problem("in_new_processes", self.in_new_processes, allowed)
        return self

    def stops(self, case: str) -> list[int]:
        """Return the numbers of steps after which a run of ``case`` is stopped."""
        last = self.num_steps - 1
        every = 1 if case in self.stop_after_every_step else self.stop_every
        return sorted({1, *range(every, last + 1, every), last})
