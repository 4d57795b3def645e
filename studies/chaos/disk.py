"""A copy on a small disk of its own, which gets full."""

import os
import subprocess

from processes import wait_until
from results import OUTPUTS
from world import START_S, World

ROOM = "128M"


def mount(world: World) -> None:
    """Make the folder of the copy a disk of its own, in memory; it needs root."""
    world.folder.mkdir()
    folder = str(world.folder)
    command = ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", folder]
    subprocess.run(command, check=True)
    umount = ["umount", "--lazy", folder]
    world.cleanups.append(lambda: subprocess.run(umount, check=True))


def fill(world: World, left_bytes: int) -> None:
    """Leave so much room on that disk; the remedy is enough of it."""
    disk = os.statvfs(world.folder)
    used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize
    resize(world, str(used + left_bytes))
    world.remedies.append(lambda: resize(world, ROOM))


def resize(world: World, size: str) -> None:
    """Of the disk that :func:`mount` made."""
    command = ["mount", "-o", f"remount,size={size}", str(world.folder)]
    subprocess.run(command, check=True)


def while_saving(world: World) -> str:
    world.await_role("rank")
    wait_until(lambda: world.ended or world.checkpoints(), world.took_s / 2)
    fill(world, world.random.randrange(1 << 15))
    return "disk"


def for_outputs(world: World) -> str:
    world.await_role("stage")
    fill(world, world.random.randrange(1 << 14))
    return "disk"


def for_dvc(world: World) -> str:
    written = world.folder / OUTPUTS[world.target]
    wait_until(lambda: world.ended or written.exists(), START_S)
    fill(world, world.random.randrange(1 << 12))
    return "disk"
