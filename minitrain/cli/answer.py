"""The result of a command, for people and for programs."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """``ok``: the evidence says yes. ``facts`` for JSON, ``text`` for a terminal."""

    ok: bool
    facts: dict[str, Any]
    text: str
