"""Faults in files, disk, ports and clocks."""

import os
import shutil
import socket
from pathlib import Path
from random import Random

from world import World

YEAR_S = 365 * 24 * 3600
# run with a different monotonic clock, as after a reboot
LATER = ("unshare", "--time", "--fork", "--kill-child", "--monotonic", "1000000")


def truncate(random: Random, file: Path) -> None:
    """Truncate ``file`` at a random position."""
    os.truncate(file, random.randrange(file.stat().st_size))


def flip(random: Random, file: Path) -> None:
    """Flip one bit of ``file``."""
    content = bytearray(file.read_bytes())
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    file.write_bytes(content)


def delete(random: Random, file: Path) -> None:
    """Remove ``file`` or its folder."""
    shutil.rmtree(file.parent) if random.random() < 0.5 else file.unlink()


def swap(random: Random, file: Path) -> None:
    """Swap the names of ``file`` and another one in its folder, or if it is the only
    one, of its folder and a sibling folder.
    """
    others = [path for path in file.parent.iterdir() if path.suffix == file.suffix]
    others = [path for path in others if path != file]
    if not others:
        file = file.parent
        others = [path for path in file.parent.iterdir() if path != file]
    if others:
        other, aside = random.choice(others), file.with_name("aside")
        file.rename(aside)
        other.rename(file)
        aside.rename(other)


def occupy_port(world: World) -> str:
    """Listen on a port, and name it in the environment that a stage must ignore."""
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    world.more |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    world.cleanups.append(taken.close)
    return f"port {port}"


def shift_times(world: World, seconds: float) -> None:
    """Shift the modification times of all files by ``seconds``."""
    for file in [*world.folder.rglob("*")]:
        try:
            then = file.stat().st_mtime + seconds
            os.utime(file, (then, then))
        except FileNotFoundError:
            # a temporary file that no longer exists
            continue
