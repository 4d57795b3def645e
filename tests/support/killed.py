"""Writers that are killed at any line."""

import os
import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any


def killed_at(line: int, action: Callable[[], object], *writers: ModuleType) -> bool:
    """Run ``action`` in a child that is gone after so many lines of ``writers``, if it
    comes there.
    """
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    seen = 0
    written = {one.__file__ for one in writers}

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal seen
        if frame.f_code.co_filename not in written:
            return None
        seen += event == "line"
        if seen == line:
            os._exit(9)
        return trace

    sys.settrace(trace)
    try:
        action()
    finally:
        os._exit(0)
