"""Schema of studies/peers/params.yaml."""

from typing import Annotated

from pydantic import Field
from study_settings import InterleavedAtSizes


class Peers(InterleavedAtSizes):
    # with more, shm adds in another order than DDP
    world_size: Annotated[int, Field(ge=2, le=2)]
