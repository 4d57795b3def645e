"""Schema of studies/trace/params.yaml."""

from typing import Annotated, Literal

from pydantic import Field
from study_settings import WorldSize

from minitrain.core.schema import Count, Section


class Trace(Section):
    world_size: WorldSize
    backend: Literal["gloo", "nccl"]
    # DDP rebuilds its buckets after step 0, and one step warms up the profiler
    first_step: Annotated[int, Field(ge=3)]
    num_steps: Count
    shortest_op_us: Annotated[float, Field(ge=0, allow_inf_nan=False)]
