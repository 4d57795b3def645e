"""Properties of all error lines."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from minitrain.core.errors import UserError


def refusal(call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """Return the line of the UserError that ``call`` raises for these arguments, after
    checking that it is a single short line.
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
