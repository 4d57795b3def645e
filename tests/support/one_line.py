"""What every error line has in common."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from minitrain.core.errors import UserError


def refusal(call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """The line with which ``call`` refuses these arguments as a user's mistake: one
    that a terminal can hold.
    """
    with pytest.raises(UserError) as raised:
        call(*arguments, **options)
    line = str(raised.value)
    assert line
    assert "\n" not in line, f"more than one line:\n{line}"
    # however deep the folder of the tests lies
    told = re.sub(r"/\S*/pytest-\d+/(popen-gw\d+/)?", "", line)
    assert len(told) < 300, f"too long to read: {line}"
    return line
