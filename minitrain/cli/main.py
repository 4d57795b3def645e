"""The command line: one file per command.

A command parses its arguments and gives an :class:`Answer`; how answers are printed and
which exit code they have is the same for all: 0 all well, 1 the evidence says no, 2 bad
input.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence

from minitrain import __version__
from minitrain.cli import check, doctor, explain, report, summary, verify
from minitrain.cli.answer import Answer
from minitrain.core.errors import EXIT_EVIDENCE, run_stage

COMMANDS = {
    "check": check,
    "verify": verify,
    "doctor": doctor,
    "explain": explain,
    "report": report,
    "summary": summary,
}
EXIT_CODES = "exit codes: 0 all well, 1 the evidence says no, 2 bad input"


def main() -> None:
    """The ``minitrain`` command."""
    run_stage(lambda: sys.exit(run(sys.argv[1:])))


def run(arguments: Sequence[str]) -> int:
    """Run one command -> its exit code."""
    as_written = argparse.RawDescriptionHelpFormatter
    examples = [command.EXAMPLE for command in (check, doctor, explain, verify)]
    parser = argparse.ArgumentParser(
        prog="minitrain",
        description="Instruments for data-parallel training.",
        epilog="\n  ".join(["examples:", *examples]) + f"\n\n{EXIT_CODES}",
        formatter_class=as_written,
    )
    version = f"minitrain {__version__}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(metavar="COMMAND")
    for name, command in COMMANDS.items():
        headline, _, description = (command.__doc__ or "").partition("\n\n")
        added = commands.add_parser(
            name,
            help=headline,
            description=f"{headline}\n\n{description}",
            epilog=f"example:\n  {command.EXAMPLE}\n\n{EXIT_CODES}",
            formatter_class=as_written,
        )
        added.add_argument("--json", action="store_true", help="print JSON")
        command.add_arguments(added)
        added.set_defaults(answer=command.answer)
    options = parser.parse_args(arguments)
    if "answer" not in options:
        parser.print_help()
        return 0
    answer: Answer = options.answer(options)
    facts = json.dumps(answer.facts, indent=2, allow_nan=False) if options.json else ""
    try:
        print(facts or answer.text, flush=True)
    except BrokenPipeError:
        # `| head` has read enough; Python would complain of it once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0 if answer.ok else EXIT_EVIDENCE
