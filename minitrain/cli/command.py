"""Elements that all commands share: their result and their argument parser."""

import argparse
from dataclasses import dataclass
from typing import Any, NoReturn

from minitrain.core.errors import UserError


@dataclass(frozen=True)
class Answer:
    """Result of a command: ``ok`` sets the exit code, ``facts`` are printed as JSON if
    asked for, else ``text``.
    """

    ok: bool
    facts: dict[str, Any]
    text: str


class Names(tuple[str, ...]):
    """Choices of an option that also accepts ``package.module:Class``."""

    def __contains__(self, value: object) -> bool:
        return ":" in str(value) or super().__contains__(value)


class Parser(argparse.ArgumentParser):
    """Argument parser that raises a UserError instead of printing usage and exiting."""

    def error(self, message: str) -> NoReturn:
        """Raise UserError for a missing or invalid argument."""
        raise UserError(f"{self.prog}: {message}; see {self.prog} --help")

    def refuse(self, unknown: str) -> NoReturn:
        """Raise UserError for an ``unknown`` argument or option."""
        is_command = self.prog.endswith(" record") and not unknown.startswith("-")
        hint = ": put -- before COMMAND" if is_command else ""
        self.error(f"unrecognized argument {unknown!r}{hint}")
