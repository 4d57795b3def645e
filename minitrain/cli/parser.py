"""Arguments of the command line: what is wrong with them is one line."""

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from minitrain.core.errors import UserError, did_you_mean


class Parser(argparse.ArgumentParser):
    """Raises UserError, with the nearest of what is allowed, where argparse would print
    two lines or more and exit.
    """

    def error(self, message: str) -> NoReturn:
        """Refuse what is missing, or of no use."""
        raise UserError(f"{self.prog}: {message}; see {self.prog} --help")

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Refuse arguments that nobody took: the first option, as others follow it."""
        options = [one for one in unknown if one.startswith("-")]
        if not options:
            self.error(f"{unknown[0]!r} is one argument too many")
        name, *_ = options[0].split("=")
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


class Names(tuple[str, ...]):
    """Choices that are not all: ``package.module:Class`` is one, too."""

    def __contains__(self, value: object) -> bool:
        return ":" in str(value) or super().__contains__(value)
