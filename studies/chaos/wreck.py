"""Actions of faults: the damage, and its target in a running pipeline."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from signal import Signals

from copies import TARGETS
from processes import kill_all, processes, send, wait_until
from world import START_S, World

ALL = ("dvc", "shell", "stage", "rank", "other")
TRAIN = ("train@1", "train@2")
PAIR = ("train@2",)


@dataclass(frozen=True)
class Fault:
    """Fault; ``do`` returns what it hit, ``targets`` are the DVC targets it fits."""

    do: Callable[[World], str]
    targets: tuple[str, ...] = TARGETS
    # injected before the pipeline starts; on a separate small disk
    is_first: bool = False
    on_disk: bool = False


def sometime(world: World, part: float = 1.0) -> None:
    """Sleep for a random time within that fraction of the target's duration."""
    time.sleep(world.random.uniform(0, part * world.took_s))


def signal_one(number: Signals, *roles: str) -> Callable[[World], str]:
    """Send a signal to one process with such a role at a random moment."""

    def do(world: World) -> str:
        world.await_role(*roles)
        sometime(world, 0.9 if "dvc" in roles else 0.4)
        found = [p for p, role in processes(world.mark).items() if role in roles]
        if not found:
            return "no process"
        victim = world.random.choice(sorted(found))
        role = processes(world.mark).get(victim, "no process")
        send(number, [victim])
        return role

    return do


def signal_group(number: Signals) -> Callable[[World], str]:
    """To DVC and all that shares its process group, as a terminal does."""

    def do(world: World) -> str:
        world.await_role("dvc")
        # before, DVC itself is not there to answer
        time.sleep(1)
        sometime(world, 0.8)
        if world.ended:
            return "no process"
        world.signal_group(number)
        return "group"

    return do


def kill_tree(world: World) -> str:
    sometime(world)
    kill_all(world.mark)
    return "all"


def spoil(how: Callable[[Random, Path], None]) -> Callable[[World], str]:
    """Kill all when there are two checkpoints, and damage a file of the newest."""

    def do(world: World) -> str:
        wait_until(lambda: world.ended or len(world.checkpoints()) > 1, START_S)
        kill_all(world.mark)
        if not world.checkpoints():
            return "no checkpoint"
        newest = world.checkpoints()[-1]
        file = world.random.choice(sorted(newest.iterdir()))
        how(world.random, file)
        return f"{newest.name}/{file.name}"

    return do
