"""Copies on a small tmpfs that fills up."""

import os
import subprocess
from collections.abc import Callable

from processes import wait_until
from results import OUTPUTS
from world import START_S, World

ROOM_BYTES = 1 << 27


def mount(world: World) -> None:
    """Mount a tmpfs on the copy's folder; requires root."""
    world.folder.mkdir()
    folder = str(world.folder)
    command = ["mount", "-t", "tmpfs", "-o", f"size={ROOM_BYTES}", "tmpfs", folder]
    subprocess.run(command, check=True)
    umount = ["umount", "--lazy", folder]
    world.cleanups.append(lambda: subprocess.run(umount, check=True))


def fill(world: World, left_bytes: int) -> None:
    """Shrink the disk to ``left_bytes`` of free space; the remedy restores its size."""
    # retried, since the kernel rejects a size below the space in use
    resize(world, lambda: used_bytes(world) + left_bytes)
    world.remedies.append(lambda: resize(world, lambda: ROOM_BYTES))


def used_bytes(world: World) -> int:
    disk = os.statvfs(world.folder)
    return (disk.f_blocks - disk.f_bfree) * disk.f_frsize


def resize(world: World, size: Callable[[], int]) -> None:
    """Remount the disk with ``size()`` bytes, retrying until the kernel accepts it."""

    def remounted() -> bool:
        command = ["mount", "-o", f"remount,size={size()}", str(world.folder)]
        return subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0

    if not wait_until(remounted, START_S):
        raise RuntimeError(f"{world.folder}: cannot be given another size")


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
