"""Print what makes your shell complete commands, options, values and files.

In ~/.bashrc or, after compinit, in ~/.zshrc, with the name of the shell:

  eval "$(minitrain completion bash)"

fish: minitrain completion fish | source, in ~/.config/fish/config.fish.
"""

import argparse
from pathlib import Path

import shtab

from minitrain.cli.answer import Answer
from minitrain.cli.parser import Named

EXAMPLES = {
    "the script for bash": "minitrain completion bash",
    "the script for fish": "minitrain completion fish",
}
SHELLS = ("bash", "zsh", "fish")
# by the type of an argument
COMPLETED = {Path: shtab.FILE, Named: shtab.glob("*.py")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the shell."""
    add = parser.add_argument
    add("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def answer(options: argparse.Namespace) -> Answer:
    """Write the script from the parsers of all commands."""
    for command in options.commands.values():
        for action in command._actions:
            if action.type in COMPLETED:
                action.complete = COMPLETED[action.type]
    script = shtab.complete(options.whole, options.shell)
    return Answer(True, {"shell": options.shell, "script": script}, script)
