"""Waiting in tests, with a time limit."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import psutil

T = TypeVar("T")
# Seconds for what takes a moment, on a machine of a third of the speed and under load:
# what waits so long has failed.
GENEROUS_S = 120


def wait_for(look: Callable[[], list[T]], count: int) -> list[T]:
    """Return the result of ``look`` once it has ``count`` items."""
    deadline = time.monotonic() + GENEROUS_S
    while time.monotonic() < deadline:
        found = look()
        if len(found) >= count:
            return found
        time.sleep(0.1)
    raise AssertionError(f"never saw {count} of them")


def ended(process: psutil.Process, within_s: float = GENEROUS_S) -> bool:
    """Return true if the process exits, or is a zombie, within ``within_s``."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        with suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.02)
                continue
        return True
    return False
