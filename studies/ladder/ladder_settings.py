"""What studies/ladder/params.yaml may say."""

from typing import Annotated

from pydantic import Field

from minitrain.core.schema import Section, Some
from minitrain.core.study import WorldSize


class Ladder(Section):
    world_sizes: Some[WorldSize]
    num_steps: Annotated[int, Field(ge=3)]
