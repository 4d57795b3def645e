"""Errors reported as one line and an exit code.

Exit codes of every command and stage: 0 success; 1 the run finished but its evidence
failed; 2 bad input or environment; 128 + n terminated by signal n.
"""

import difflib
import errno
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterable
from importlib.util import find_spec

from minitrain.core.printable import as_lines, printable
from minitrain.core.signals import Stopped, say, stoppable, stopped_by

EXIT_EVIDENCE = 1
EXIT_USER = 2
# disk full or quota exceeded
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
NO_SPACE = "no space left on the disk"
# the only hint in torch.save's error when it writes to a path on a full disk
OF_TORCH = "unexpected pos"
# packages that all commands import; stages also import LAB, the extra `lab`
PACKAGES = "blake3 cloudpickle jinja2 numpy pydantic safetensors torch tqdm"
LAB = "markdown_it markupsafe matplotlib pandas psutil ruamel"


class UserError(Exception):
    """A mistake that the user can fix. Its message, one line, names the file, the key
    or line number, the value and the allowed values.
    """

    exit_code = EXIT_USER


class EvidenceError(Exception):
    """A check of a finished run failed; the message, one line, names the difference."""

    exit_code = EXIT_EVIDENCE


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """Return " (did you mean X?)" with the closest match for ``word`` in ``allowed``,
    ignoring case; empty if none is close.
    """
    names = {name.lower(): name for name in allowed}
    close = difflib.get_close_matches(word.lower(), names, n=1)
    return f" (did you mean {names[close[0]]}?)" if close else ""


class RankError(Exception):
    """A rank failed or timed out; the message, one line, names the rank.

    ``of_another``: another rank caused the failure, maybe on another host.
    ``__notes__`` holds the traceback of the rank, if any.
    """

    exit_code = EXIT_USER
    rank: int | None = None
    # a failure of a lower kind is the likely cause of one of a higher kind
    kind: int = 0
    of_another: bool = False


def is_disk_full(error: BaseException | None) -> bool:
    """Return True if ``error``, or an exception that caused it, reports a full disk."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            return True
        if OF_TORCH in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def describe_os_error(error: OSError) -> str:
    """Return one line for an operating-system error: the path, then the reason."""
    path = error.filename if error.filename is not None else "the operating system"
    why = NO_SPACE if is_disk_full(error) else error.strerror or error
    return f"{path}: {why}"


def require_packages(names: str = PACKAGES) -> None:
    """Exit with an error message if one of the packages in ``names``, separated by
    spaces, is not installed. Call this before importing any of them.
    """
    if missing := [name for name in names.split() if find_spec(name) is None]:
        start = f"{sys.executable}: missing packages {', '.join(missing)}"
        sys.exit(say(f"{start}: run `make`, which installs them in .venv", EXIT_USER))


def run_stage(main: Callable[[], None]) -> None:
    """Run ``main``, the body of a stage; if it fails, exit with the error's exit code.

    A user's mistake, an operating-system error or a failed rank is reported as one line
    on stderr (MINITRAIN_TRACEBACK=1 adds a rank's traceback), and so are SIGINT,
    SIGTERM and SIGHUP, after cleanup. Other exceptions are bugs: they keep a traceback.
    """
    gc.enable()
    try:
        with stoppable():
            main()
    except (UserError, EvidenceError, RankError) as error:
        if os.environ.get("MINITRAIN_TRACEBACK") == "1":
            notes = "\n".join(getattr(error, "__notes__", []))
            print(as_lines(notes.split("\n")), end="", file=sys.stderr)
        _fail(str(error), error.exit_code)
    except OSError as error:
        _fail(describe_os_error(error))
    except KeyboardInterrupt as stop:
        number = stop.number if isinstance(stop, Stopped) else signal.SIGINT
        line, code = stopped_by(number)
        _fail(line, code)


def _fail(line: str, code: int = EXIT_USER) -> None:
    try:
        sys.stdout.flush()
    except OSError:
        # Python would try to write the rest at exit, and change the exit code
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(say(printable(" ".join(line.split())), code))
