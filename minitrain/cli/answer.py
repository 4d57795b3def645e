"""What a command found, for people and for programs."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """``well``: the evidence says yes. ``facts`` for JSON, ``text`` for a terminal."""

    well: bool
    facts: dict[str, Any]
    text: str
