"""Waiting in tests: for something to appear, never for ever."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(look: Callable[[], list[T]], count: int) -> list[T]:
    """What ``look`` finds as soon as there are ``count`` of them."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = look()
        if len(found) >= count:
            return found
        time.sleep(0.1)
    raise AssertionError(f"never saw {count} of them")
