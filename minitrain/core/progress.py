"""Progress reports: a bar on a terminal, a line every few seconds in a log."""

import sys
from collections.abc import Iterable, Iterator, Sized
from io import TextIOBase
from typing import Any, TypeVar

from tqdm import tqdm

T = TypeVar("T")
SECONDS_BETWEEN_LINES = 5.0


class _Lines(TextIOBase):
    """File that turns the frames of a progress bar into lines for a log."""

    last = ""

    def write(self, text: str) -> int:
        line = text.strip("\r\n ")
        # closing a bar repeats its last frame
        done = line.rpartition(" [")[0]
        if done not in ("", self.last):
            self.last = done
            print(line, file=sys.stderr)
        return len(text)


def progress(
    items: Iterable[T],
    title: str,
    *,
    total: int | None = None,
    show: bool = True,
    initial: int = 0,
) -> Iterator[T]:
    """Iterate over ``items`` and, if ``show``, report progress on stderr. ``total`` is
    the number of items if they have no length; ``initial`` of them were done before.
    """
    lines: dict[str, Any] = {
        "file": _Lines(),
        "mininterval": SECONDS_BETWEEN_LINES,
        # tqdm would adapt this and check the clock too rarely
        "miniters": 1,
        # no output for short work
        "delay": SECONDS_BETWEEN_LINES,
        "bar_format": "{desc}: {n_fmt}/{total_fmt} [{elapsed}<{remaining}]",
    }
    if total is None and not isinstance(items, Sized):
        lines["bar_format"] = "{desc}: {n_fmt} [{elapsed}]"
    how = {} if sys.stderr.isatty() else lines
    return iter(tqdm(items, title, total, disable=not show, initial=initial, **how))
