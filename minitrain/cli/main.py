"""The command line, with one module per command.

A command turns its arguments into an :class:`Answer`, which :func:`run` prints.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence

from minitrain import __version__
from minitrain.cli import check, doctor, explain, record, report, show, summary, verify
from minitrain.cli.command import Answer, Parser
from minitrain.core.errors import EXIT_EVIDENCE, LAB, UserError, run_stage
from minitrain.core.printable import as_lines

COMMANDS = {
    "record": record,
    "show": show,
    "check": check,
    "verify": verify,
    "doctor": doctor,
    "explain": explain,
    "report": report,
    "summary": summary,
}
EXIT_CODES = "exit codes: 0 all well, 1 a check failed or is undecided, 2 bad input"


def main() -> None:
    """Run the ``minitrain`` command and exit."""
    run_stage(lambda: sys.exit(run(sys.argv[1:])))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; wrong arguments raise UserError."""
    parser = make_parser()
    own, command = [*arguments], []
    if own[:1] == ["record"] and "--" in own:
        cut = own.index("--")
        own, command = own[:cut], own[cut + 1 :]
    options, unknown = parser.parse_known_args(own)
    options.command = command
    if unknown:
        options.parser.refuse(unknown[0])
    if "answer" not in options:
        parser.print_help()
        return 0
    try:
        answer: Answer = options.answer(options)
    except ModuleNotFoundError as error:
        if error.name not in LAB.split():
            raise
        needs = f"{options.parser.prog} needs {error.name}"
        raise UserError(f"{needs}: pip install 'minitrain[lab]'") from None
    text = as_lines(answer.text.split("\n"))
    if options.json:
        # NaN and infinity, which JSON does not have, become null
        facts = json.loads(json.dumps(answer.facts), parse_constant=lambda _: None)
        text = json.dumps(facts, indent=2)
    # a locale may lack characters of a name
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    text = text.encode(encoding, "backslashreplace").decode(encoding)
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # the reader closed the pipe, as `| head` does; Python would report it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0 if answer.ok else EXIT_EVIDENCE


def make_parser() -> Parser:
    """Return the parser; ``answer`` of parsed options is the function of a command."""
    as_written = argparse.RawDescriptionHelpFormatter
    first = [next(iter(one.EXAMPLES.values())) for one in COMMANDS.values()]
    parser = Parser(
        prog="minitrain",
        description="Instruments for data-parallel training.",
        epilog="\n  ".join(["examples:", *first]) + f"\n\n{EXIT_CODES}",
        formatter_class=as_written,
    )
    version = f"minitrain {__version__}"
    parser.add_argument("-V", "--version", action="version", version=version)
    commands = parser.add_subparsers(metavar="COMMAND")
    for name, command in COMMANDS.items():
        headline, _, description = (command.__doc__ or "").partition("\n\n")
        examples = [f"  # {what}\n  {line}" for what, line in command.EXAMPLES.items()]
        added = commands.add_parser(
            name,
            help=headline,
            description=f"{headline}\n\n{description}",
            epilog="\n".join(["examples:", *examples, "", EXIT_CODES]),
            formatter_class=as_written,
        )
        added.add_argument("--json", action="store_true", help="print JSON")
        if hasattr(command, "add_arguments"):
            command.add_arguments(added)
        added.set_defaults(answer=command.answer, parser=added)
    parser.set_defaults(parser=parser)
    return parser
