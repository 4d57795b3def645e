"""Schema of studies/zoo/params.yaml."""

from typing import Annotated

from pydantic import Field

from minitrain.core.schema import Count, Section, Some


class Zoo(Section):
    num_seeds: Annotated[int, Field(ge=2)]
    world_sizes: Some[Count]
    num_loss_steps: Annotated[int, Field(ge=8)]
