"""Schema of studies/strategies/params.yaml."""

from typing import Annotated

from pydantic import Field
from study_settings import InterleavedAtSizes

from minitrain.core.schema import Count, Some


class Strategies(InterleavedAtSizes):
    # number of places in the plot
    global_batch_sizes: Annotated[Some[Count], Field(min_length=2, max_length=2)]
    num_steps: Annotated[int, Field(ge=2)]
