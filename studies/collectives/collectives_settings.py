"""Schema of studies/collectives/params.yaml."""

from typing import Annotated, Self

from pydantic import Field, model_validator
from study_settings import WorldSize

from minitrain.core.schema import PositiveFloat, Problem, Section, Some

# float32
Bytes = Annotated[int, Field(ge=4, multiple_of=4)]


class Collectives(Section):
    world_sizes: Some[WorldSize]
    smallest_bytes: Bytes
    largest_bytes: Bytes
    seconds_per_size: PositiveFloat
    # a string, so that DVC can interpolate it
    goals: dict[Annotated[Bytes, Field(strict=False)], PositiveFloat]

    @model_validator(mode="after")
    def _powers_of_two_in_order(self) -> Self:
        # limits of the plot's axis
        if self.smallest_bytes.bit_count() != 1:
            raise Problem("smallest_bytes", self.smallest_bytes, "a power of two")
        if self.largest_bytes < self.smallest_bytes:
            allowed = f"at least smallest_bytes = {self.smallest_bytes}"
            raise Problem("largest_bytes", self.largest_bytes, allowed)
        return self
