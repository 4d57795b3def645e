"""DVC without its hints: what ``make`` calls where one would type ``dvc``.

    python -m minitrain.cli.quiet_dvc repro

After stages that ran, DVC advises to add dvc.lock to git, to let it do that by itself,
and to push to a remote, even where there is none. Its ``--quiet`` hides errors too, and
``core.autostage`` would change what ``git checkout dvc.lock`` goes back to. So these
lines are left out, by their words: whatever else DVC says, or a later DVC says in other
words, is there, and so are the stages' own output and the exit codes.

Nor does it say that a stage failed which Ctrl-C ended: the stage has said so itself.
"""

import io
import logging
import runpy
import signal
import sys
from contextlib import redirect_stdout
from typing import TextIO, cast

HINTS = (
    "To track the changes with git, run:",
    "To enable auto staging, run:",
    "Use `dvc push` to send your updates",
    "Generating lock file",
    "Updating lock file",
)
# a file that a stage is about to make
NEWS = "No file hash info found for"
# the end of what DVC says of a stage that Ctrl-C ended
INTERRUPTED = f"exited with {128 + signal.SIGINT}"


class WithoutHints(io.TextIOBase):
    """A text stream that hands on to ``stream`` what is no hint. DVC writes a message
    at once, and the end of its line after it.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.left_out = stream, False

    def write(self, text: str) -> int:
        """Hand ``text`` on, unless it is a hint or the end of one."""
        ends_hint = self.left_out and text == "\n"
        self.left_out = text.lstrip().startswith(HINTS)
        if not (ends_hint or self.left_out):
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush what was handed on."""
        self.stream.flush()

    def isatty(self) -> bool:
        """Whether it is a terminal, which decides about colors."""
        return self.stream.isatty()


def without_news(record: logging.LogRecord) -> bool:
    """Whether a log record of DVC's is to be shown."""
    return not str(record.msg).startswith(NEWS)


def without_interrupts(record: logging.LogRecord) -> bool:
    """Whether an error that ends DVC is to be shown."""
    error = record.exc_info[1] if record.exc_info else None
    cause = error.__cause__ if error else None
    return not str(cause).endswith(INTERRUPTED)


def main() -> None:
    """Run DVC with the arguments of this process; ends the process as DVC does."""
    logging.getLogger("dvc.cli").addFilter(without_interrupts)
    logging.getLogger("dvc_data.hashfile.checkout").addFilter(without_news)
    with redirect_stdout(cast(TextIO, WithoutHints(sys.stdout))):
        runpy.run_module("dvc", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
