"""The command line: one file per command.

A command parses its arguments and gives an :class:`Answer`; how answers are printed and
which exit code they have is the same for all: 0 all well, 1 the evidence says no, 2 bad
input.
"""

import argparse
import json
import sys
from collections.abc import Sequence

from minitrain.cli import doctor, explain, verify
from minitrain.cli.answer import Answer
from minitrain.core.errors import EXIT_EVIDENCE, run_stage

COMMANDS = {"verify": verify, "doctor": doctor, "explain": explain}


def main() -> None:
    """The ``minitrain`` command."""
    run_stage(lambda: sys.exit(run(sys.argv[1:])))


def run(arguments: Sequence[str]) -> int:
    """Run one command -> its exit code."""
    parser = argparse.ArgumentParser(
        prog="minitrain",
        description="Instruments for data-parallel training.",
        epilog="exit codes: 0 all well, 1 the evidence says no, 2 bad input",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        summary, _, description = (command.__doc__ or "").partition("\n\n")
        added = commands.add_parser(name, help=summary, description=description)
        added.add_argument("--json", action="store_true", help="print JSON")
        command.add_arguments(added)
        added.set_defaults(answer=command.answer)
    options = parser.parse_args(arguments)
    answer: Answer = options.answer(options)
    if options.json:
        print(json.dumps(answer.facts, indent=2, allow_nan=False))
    else:
        print(answer.text)
    return 0 if answer.well else EXIT_EVIDENCE
