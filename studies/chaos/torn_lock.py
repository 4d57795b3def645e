"""kill -9 of a DVC that writes dvc.lock."""

import time
from signal import SIGKILL

from processes import kill_all, send
from world import START_S, World


def kill_at_lock(world: World) -> str:
    """Kill DVC while it writes dvc.lock, in which it begins by emptying it."""
    lock = world.folder / "dvc.lock"
    whole = lock.stat().st_size
    victims = world.await_role("dvc")
    limit = time.monotonic() + START_S
    # no pause: it takes a few milliseconds
    while not world.ended and lock.stat().st_size >= whole:
        if time.monotonic() > limit:
            break
    send(SIGKILL, victims)
    left = lock.stat().st_size
    kill_all(world.mark)
    return f"dvc.lock, {left} bytes" if left < whole else "nobody"
