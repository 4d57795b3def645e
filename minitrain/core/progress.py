"""Progress of long work: a bar on a terminal, a line every few seconds elsewhere."""

import sys
from collections.abc import Iterable, Iterator
from io import TextIOBase
from typing import Any, TypeVar

from tqdm import tqdm

T = TypeVar("T")
SECONDS_BETWEEN_LINES = 5.0


class _Lines(TextIOBase):
    """Turns the frames of a bar into lines: no carriage returns in a log."""

    last = ""

    def write(self, text: str) -> int:
        line = text.strip("\r\n ")
        # a bar that is closed shows where it was once more
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
    """Iterate over ``items`` and, if ``show``, report on stderr how far it is.

    ``total`` is the number of items, for those that have no length; ``initial`` of them
    were done before.
    """
    lines: dict[str, Any] = {
        "file": _Lines(),
        "mininterval": SECONDS_BETWEEN_LINES,
        # without it tqdm looks at the clock only every so many items
        "miniters": 1,
        # no line for work that is over before it is worth one
        "delay": SECONDS_BETWEEN_LINES,
        "bar_format": "{desc}: {n_fmt}/{total_fmt} [{elapsed}<{remaining}]",
    }
    how = {} if sys.stderr.isatty() else lines
    return iter(tqdm(items, title, total, disable=not show, initial=initial, **how))
