"""Cases of a test that only ``make thorough`` runs."""

from collections.abc import Iterable
from typing import Any

import pytest


def thorough_after(count: int, cases: Iterable[Any]) -> list[Any]:
    """Parameters of a test: of ``cases`` the suite tries the first ``count``."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=[] if number < count else [pytest.mark.thorough],
        )
        for number, case in enumerate(cases)
    ]
