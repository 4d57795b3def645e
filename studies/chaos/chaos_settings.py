"""Schema of studies/chaos/params.yaml."""

from typing import Annotated

from pydantic import Field

from minitrain.core.schema import Count, Section


class Chaos(Section):
    seed: Annotated[int, Field(ge=0)]
    trials: Count
    jobs: Count
    limit_s: Annotated[float, Field(ge=1)]
