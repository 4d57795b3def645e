"""Ranks that were lost start again, from the newest checkpoint; mistakes do not.

A code error looks like a lost rank at first. It comes back at the same step, and then
it is the last word.
"""

import re
from collections.abc import Callable

from minitrain.core.errors import RankError
from minitrain.core.printable import note

# addresses, ports and process numbers: another each time
CHANGING = re.compile(r"0x[0-9a-f]+|\d{4,}")

# nothing that the code does: a rank that is killed twice at one step may be killed by
# a scheduler, or for want of memory
FROM_OUTSIDE = ("killed by SIGKILL", "killed by SIGTERM", "stopped")


def with_restarts(attempt: Callable[[], None], max_restarts: int) -> None:
    """Call ``attempt``, and again when it loses a rank, up to ``max_restarts`` times.

    Says on stderr what happened before each. Raises the last RankError: that of one
    too many, or of two in a row that are the same at the same step. Other exceptions,
    such as UserError and KeyboardInterrupt, are none of its business.
    """
    before: tuple[str, int | None] | None = None
    for count in range(1, max_restarts + 2):
        try:
            return attempt()
        except RankError as error:
            what = error.what or str(error)
            now = CHANGING.sub("", what), error.step
            same = now == before and not what.startswith(FROM_OUTSIDE)
            if same or count > max_restarts:
                raise
            before = now
            line = " ".join(str(error).split())
            again = f"starting again ({count} of {max_restarts})"
            note(f"{line}; {again}")
