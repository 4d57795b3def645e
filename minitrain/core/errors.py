"""Failures: one line for the user, an exit code for the machine.

Exit codes of every command and stage: 0 all well; 1 the run finished and the
evidence says no; 2 bad input or environment; 128 + n ended by signal n.
"""

import difflib
import errno
import gc
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

from minitrain.core.printable import as_lines, printable
from minitrain.core.signals import Stopped, say, stoppable, stopped_by

EXIT_EVIDENCE = 1
EXIT_USER = 2
# no room on the disk, or none that this user may take
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
# all that torch.save says that was given a path
OF_TORCH = "unexpected pos"
# what all commands import, and what stages do of the extra `lab`
PACKAGES = "blake3 cloudpickle jinja2 numpy pydantic safetensors torch tqdm"
LAB = "markdown_it markupsafe matplotlib pandas psutil ruamel"
NO_PROCESS = "cannot start a process or thread; `ulimit -u` limits them"


class UserError(Exception):
    """A mistake that the user can fix, in one line.

    The line names the file, the key or line, the value, and what is allowed.
    """

    exit_code = EXIT_USER


class Mistakes(UserError):
    """Several mistakes that the user can fix, each of ``args`` the line of one."""

    def __str__(self) -> str:
        return "\n".join(self.args)


class EvidenceError(Exception):
    """The run finished and its evidence says no: one line that says what differs."""

    exit_code = EXIT_EVIDENCE


def lines_of(error: Exception) -> list[str]:
    """Return the message of ``error``: one line, or one for each of its mistakes."""
    return [*error.args] if isinstance(error, Mistakes) else [str(error)]


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """Return the end of a line about ``word``: the nearest of ``allowed``, if any;
    upper and lower case count as equal.
    """
    names = {name.lower(): name for name in allowed}
    close = difflib.get_close_matches(word.lower(), names, n=1)
    return f" (did you mean {names[close[0]]}?)" if close else ""


class RankError(Exception):
    """A rank failed, or did not answer in time: the line names it.

    A failure with the same ``what`` (without names and places) and ``step`` is a
    repetition. ``of_another``: the rank waited for one that the launcher does not know.
    ``__notes__`` hold its traceback, if it had one.
    """

    exit_code = EXIT_USER
    rank: int | None = None
    # what lies lower explains what lies higher
    kind: int = 0
    what: str = ""
    step: int | None = None
    of_another: bool = False


def is_disk_full(error: BaseException | None) -> bool:
    """Return true if a full disk is behind ``error``, also behind another's error."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            return True
        if OF_TORCH in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def disk_full(path: Path) -> str:
    """Return the end of a line about a ``path`` that a full disk cannot take."""
    there = next(one for one in (path, *path.absolute().parents) if one.exists())
    free = shutil.disk_usage(there).free / 1e6
    return f"no space left on the disk: it needs more than the {free:.1f} MB free there"


def describe_os_error(error: OSError) -> str:
    """One line for an operating-system error: the path, then the reason."""
    if isinstance(error, BlockingIOError) and error.filename is None:
        return f"{NO_PROCESS}: {error.strerror}"
    path = error.filename if error.filename is not None else "the operating system"
    if is_disk_full(error) and isinstance(path, str | Path):
        return f"{path}: {disk_full(Path(path))}"
    return f"{path}: {error.strerror or error}"


def require_packages(names: str = PACKAGES) -> None:
    """Exit with one line if this Python lacks a package of ``names``, which `make`
    installs; call it before the modules that import them.
    """
    if lacking := [name for name in names.split() if find_spec(name) is None]:
        start = f"{sys.executable} lacks {', '.join(lacking)}"
        sys.exit(say(f"{start}: run `make`, which installs them in .venv", EXIT_USER))


def run_stage(main: Callable[[], None]) -> None:
    """Run ``main`` and exit with the code of its outcome.

    A user's mistake, an operating-system error or a rank that failed becomes one line
    on stderr (with MINITRAIN_TRACEBACK=1 a rank's traceback comes before it), as do
    SIGINT, SIGTERM and SIGHUP after everything was cleaned up. Any other exception is a
    bug and keeps its traceback.
    """
    gc.enable()
    try:
        with stoppable():
            main()
    except (UserError, EvidenceError, RankError) as error:
        if os.environ.get("MINITRAIN_TRACEBACK") == "1":
            notes = "\n".join(getattr(error, "__notes__", []))
            print(as_lines(notes.split("\n")), end="", file=sys.stderr)
        _fail(lines_of(error), error.exit_code)
    except OSError as error:
        _fail([describe_os_error(error)])
    except RuntimeError as error:
        # what Python has in place of an error of its own
        if str(error) != "can't start new thread":
            raise
        _fail([NO_PROCESS])
    except Stopped as stop:
        _stop(stop.number)
    except KeyboardInterrupt:
        _stop(signal.SIGINT)


def _stop(number: int) -> None:
    line, code = stopped_by(number)
    _fail([line], code)


def _fail(lines: list[str], code: int = EXIT_USER) -> None:
    sys.stdout.flush()
    for line in lines:
        say(printable(" ".join(line.split())), code)
    sys.exit(code)
