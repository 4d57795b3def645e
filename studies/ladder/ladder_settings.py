"""Schema of studies/ladder/params.yaml."""

from typing import Annotated

from pydantic import Field
from study_settings import WorldSize

from minitrain.core.schema import Section, Some


class Ladder(Section):
    world_sizes: Some[WorldSize]
    num_steps: Annotated[int, Field(ge=3)]
