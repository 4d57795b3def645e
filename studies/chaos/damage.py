"""Faults in files, on the disk, at a port and of the clock."""

import os
import shutil
import socket
from pathlib import Path
from random import Random

from world import World

YEAR_S = 365 * 24 * 3600
# as after a start of the machine: what counts its seconds is far ahead
LATER = ("unshare", "--time", "--fork", "--kill-child", "--monotonic", "1000000")


def truncate(random: Random, file: Path) -> None:
    """Leave the beginning of ``file``, or nothing."""
    os.truncate(file, random.randrange(file.stat().st_size))


def flip(random: Random, file: Path) -> None:
    """Change one bit of ``file``."""
    content = bytearray(file.read_bytes())
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    file.write_bytes(content)


def delete(random: Random, file: Path) -> None:
    """Remove ``file``, or the whole folder with it."""
    shutil.rmtree(file.parent) if random.random() < 0.5 else file.unlink()


def swap(random: Random, file: Path) -> None:
    """Give ``file`` and another one of its folder each other's name, or, where there is
    none, its folder and another one beside it.
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
    """Listen where a stage would if it believed its environment."""
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    world.more |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    world.cleanups.append(taken.close)
    return f"port {port}"


def shift_times(world: World, seconds: float) -> None:
    """All times of files are as if another clock had made them."""
    for file in [*world.folder.rglob("*")]:
        try:
            then = file.stat().st_mtime + seconds
            os.utime(file, (then, then))
        except FileNotFoundError:
            # temporary, and gone by now
            continue
