"""Schema of studies/recorder/params.yaml."""

from typing import Annotated

from pydantic import Field
from study_settings import InterleavedAtOneSize

from minitrain.core.schema import Count


class Recorder(InterleavedAtOneSize):
    # the first three steps are always recorded
    steps_per_round: Annotated[int, Field(ge=4)]
    memory_runs: Count
