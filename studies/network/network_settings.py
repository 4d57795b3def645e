"""Schema of studies/network/params.yaml."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from minitrain.core.schema import Count, Problem, Section

# in tc's format; None for no limit
Rate = Annotated[str, Field(pattern=r"^[1-9]\d*(k|m|g)bit$")] | None


class Network(Section):
    num_rounds: Count
    num_steps: Annotated[int, Field(ge=20)]
    num_warmup_steps: Count
    links: Annotated[dict[str, Rate], Field(min_length=1)]

    @model_validator(mode="after")
    def _steps_are_left_to_be_timed(self) -> Self:
        if self.num_warmup_steps > self.num_steps // 2:
            allowed = f"at most half of num_steps = {self.num_steps}"
            raise Problem("num_warmup_steps", self.num_warmup_steps, allowed)
        return self
