"""Schema of studies/peers/params.yaml."""

from typing import Annotated

from pydantic import Field
from study_settings import InterleavedAtSizes


class Peers(InterleavedAtSizes):
    # with more ranks, shm adds in a different order than DDP
    world_size: Annotated[int, Field(ge=2, le=2)]
