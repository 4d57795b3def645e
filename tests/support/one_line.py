"""What every error line has in common."""

import pytest


def the_line(raised: pytest.ExceptionInfo[Exception]) -> str:
    """The message of an error, which must be one line that a terminal can hold."""
    line = str(raised.value)
    assert line
    assert "\n" not in line, f"more than one line:\n{line}"
    assert len(line) < 300, f"too long to read: {line}"
    return line
