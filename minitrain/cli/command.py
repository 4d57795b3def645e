"""Elements that all commands share: their result and their argument parser."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from minitrain.core.errors import UserError, did_you_mean


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
    """Argument parser that raises a one-line UserError, with the nearest allowed name,
    instead of printing its usage and exiting.
    """

    def error(self, message: str) -> NoReturn:
        """Raise UserError for a missing or invalid argument."""
        raise UserError(f"{self.prog}: {message}; see {self.prog} --help")

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Raise UserError that names the first unknown argument or option."""
        if not unknown[0].startswith("-"):
            hint = ": put -- before COMMAND" if self.prog.endswith(" record") else ""
            self.error(f"{unknown[0]!r} is one argument too many{hint}")
        name, *_ = unknown[0].split("=")
        near = did_you_mean(name, self._option_string_actions)
        self.error(f"{name}: unknown option{near}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        name = "/".join(action.option_strings) or action.metavar or action.dest
        allowed = [str(choice) for choice in action.choices]
        near = did_you_mean(str(value), allowed)
        raise UserError(
            f"{name} = {value!r}: must be one of {', '.join(allowed)}{near}"
        )
