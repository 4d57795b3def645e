"""Ranks that fail at step 2 in a chosen way, and launchers that must report it.

    python -m faulty_rank HOW WORLD_SIZE LIMIT_S

The last rank does it; ``HOW`` is a key of FAULTS.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from minitrain.comm.groups import barrier, distributed
from minitrain.comm.heartbeat import my_heartbeat
from minitrain.core.errors import UserError, run_stage
from minitrain.harness.launcher import run_as_ranks

FAULT_AT = 2


def sleep_for_ever() -> None:
    time.sleep(1000)


def work_for_ever() -> None:
    while True:
        pass


def send_myself(number: signal.Signals) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def segfault() -> None:
    ctypes.string_at(0)


def raise_(error: Exception) -> None:
    raise error


def sum_of(size: int) -> None:
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(size))


def leave_when_told() -> None:
    """Exit cleanly on SIGTERM, as programs with cleanup do."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    sleep_for_ever()


def leak_a_process() -> None:
    # what a signal of the terminal does not reach
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    os.kill(os.getpid(), signal.SIGKILL)


FAULTS: dict[str, Callable[[], None]] = {
    "nothing": lambda: None,
    "sleeps": sleep_for_ever,
    "works": work_for_ever,
    "stops": send_myself(signal.SIGSTOP),
    "is killed": send_myself(signal.SIGKILL),
    "crashes": segfault,
    "aborts": os.abort,
    "exits 3": lambda: os._exit(3),
    "exits 0": lambda: os._exit(0),
    "leaves 0": lambda: sys.exit(0),
    "raises": lambda: raise_(ValueError("a bug")),
    "mistakes": lambda: raise_(UserError("params.yaml: b = 3: must be 4")),
    "sums more": lambda: sum_of(4000),
    "sums less": lambda: sum_of(1),
    "waits elsewhere": barrier,
    "leaks a thread": lambda: threading.Thread(target=sleep_for_ever).start(),
    "leaks a process beside one that leaves": leak_a_process,
    "exits 3 beside one that stops": lambda: os._exit(3),
    "exits 0 beside one that sleeps": lambda: os._exit(0),
}
USUAL: dict[str, Callable[[], None]] = {
    "sums more": lambda: sum_of(4),
    "sums less": lambda: sum_of(4),
    "waits elsewhere": lambda: sum_of(4),
    "exits 3 beside one that stops": send_myself(signal.SIGSTOP),
    "exits 0 beside one that sleeps": sleep_for_ever,
    "leaks a process beside one that leaves": leave_when_told,
}


def be_a_rank(
    how: str, limit_s: float, launcher: str = "", note: Path | None = None
) -> None:
    """Three steps; in the third the last rank fails, and writes into ``note`` when."""
    with distributed(timeout_s=int(limit_s)) as (rank, world_size):
        place = my_heartbeat()
        for step in range(FAULT_AT + 1):
            place.mark(step, "forward")
            if step == FAULT_AT:
                last = rank == world_size - 1
                if last and note is not None:
                    note.write_text(str(time.time()))
                (FAULTS[how] if last else USUAL.get(how, lambda: None))()
            place.enter("backward")
            sum_of(2)
        place.enter("write")


def main() -> None:
    how, world_size, limit_s = sys.argv[1:]
    run_as_ranks(
        "faulty_rank",
        partial(be_a_rank, how, float(limit_s)),
        int(world_size),
        threads_per_process=1,
    )


if __name__ == "__main__":
    run_stage(main)
