"""Arms of the comparison: one loop, recorded at different intervals."""

from collections.abc import Iterator
from pathlib import Path

from recorded_loop import NEVER, Recorded

RAW, AGAIN = "raw DDP loop", "raw DDP loop again"
EVERY_STEP, BETWEEN = "every step recorded", "between recorded steps"


def arms_of(world_size: int, every: int, folder: Path) -> Iterator[Recorded]:
    for name, interval in (
        (RAW, 0),
        (f"recorded every {every}", every),
        (BETWEEN, NEVER),
        (EVERY_STEP, 1),
        (AGAIN, 0),
    ):
        yield Recorded(name, world_size, 1, every=interval, folder=folder)
