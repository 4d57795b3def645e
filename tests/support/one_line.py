"""What every error line has in common."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from minitrain.core.errors import UserError


def the_line(raised: pytest.ExceptionInfo[Exception]) -> str:
    """The message of an error, which must be one line that a terminal can hold."""
    line = str(raised.value)
    assert line
    assert "\n" not in line, f"more than one line:\n{line}"
    # however deep the folder of the tests lies
    told = re.sub(r"/\S*/pytest-\d+/(popen-gw\d+/)?", "", line)
    assert len(told) < 300, f"too long to read: {line}"
    return line


def refusal(call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """The line with which ``call`` refuses these arguments as a user's mistake."""
    with pytest.raises(UserError) as raised:
        call(*arguments, **options)
    return the_line(raised)
