"""The two runs of a trial, with timing."""

import time
from dataclasses import dataclass
from pathlib import Path

from judge import ON, RESTART, Ran
from processes import kill_all, wait_until, with_role
from results import digests
from world import World


@dataclass
class Trial:
    """Row of results.csv; see the study's README for the columns."""

    trial: int
    kind: str
    target: str
    hit: str = ""
    exit_code: int | None = None
    outcome: str = ""
    detection_s: float | None = None
    recovery_s: float | None = None
    went_on_from: int | None = None
    wrong: str = ""
    said: str = ""


def watch(world: World, trial: Trial, limit_s: float) -> Ran:
    """Follow the first run from the fault to its end; record the times."""
    hit_at = time.monotonic()
    limit_s += world.took_s
    wait_until(lambda: world.ended or RESTART in world.said(), limit_s)
    seen_s = time.monotonic() - hit_at
    if not world.ended and wait_until(
        lambda: world.ended or ON in world.said(), limit_s
    ):
        trial.recovery_s = time.monotonic() - hit_at
    ran = finish(world, limit_s)
    if ran.code != 0 or RESTART in ran.said:
        trial.detection_s = seen_s
    return ran


def repeat(
    world: World, trial: Trial, limit_s: float, mark: str
) -> tuple[Ran, list[Path]]:
    """Start the second run, and record the checkpoints that it found."""
    world.start("second", *world.before)
    # wait for the stages of the first run, which may still remove checkpoints, but no
    # longer, so that checkpoints of the second run are not counted
    holder = "stage" if world.target.startswith("replay") else "rank"
    wait_until(lambda: not with_role(mark, holder), limit_s)
    found = world.checkpoints()
    wait_until(lambda: world.ended or ON in world.said(), limit_s)
    if trial.detection_s is not None and trial.recovery_s is None:
        trial.recovery_s = time.monotonic() - world.started
    ran = finish(world, limit_s)
    if ON in ran.said:
        trial.went_on_from = int(ran.said.split(ON)[1].split()[0].strip(".,;:"))
    return ran, found


def finish(world: World, limit_s: float) -> Ran:
    """Wait for the current run; its code is None if it hangs."""
    code = None
    if wait_until(lambda: world.ended, limit_s) and world.process is not None:
        code = world.process.returncode
    else:
        kill_all(world.mark)
    return Ran(code, world.said(), digests(world.folder))
