"""kill -9 of a DVC that writes dvc.lock."""

import time
from signal import SIGKILL

from processes import kill_all, send
from world import START_S, World


def kill_at_lock(world: World) -> str:
    """Kill DVC while it writes dvc.lock, which it empties first, and leave as much of
    it as a kill some milliseconds later may.
    """
    lock = world.folder / "dvc.lock"
    whole = lock.read_bytes()
    victims = world.await_role("dvc")
    limit = time.monotonic() + START_S
    # no pause: it takes a few milliseconds
    while not world.ended and lock.stat().st_size >= len(whole):
        if time.monotonic() > limit:
            break
    if world.ended:
        return "nobody"
    send(SIGKILL, victims)
    kill_all(world.mark)
    lock.write_bytes(whole[: world.random.randrange(len(whole))])
    return f"dvc.lock, {lock.stat().st_size} bytes"
