"""What became of a rank, as one line: which process, where it was, what happened."""

import re
import signal
import socket
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from minitrain.comm.heartbeat import AFTER, Seen, file_of, find_place
from minitrain.core.errors import RankError, UserError
from minitrain.harness import stack_dump as stack

# how gloo, NCCL, torch's stores and our sockets say that another rank went away ...
LOST_PEER = re.compile(
    r"closed by (remote )?peer|reset by peer|Broken pipe|caused pair closure"
    r"|Connection refused|remote process exit|ncclRemoteError",
    re.I,
)
# ... or did not come
WAITED = re.compile(
    r"Timed out waiting \d+ ?ms|timed out after \d+ ?ms|wait timeout|Socket Timeout"
    r"|no answer within",
    re.I,
)
# gloo's last words when it is sent more than it expects
UNLIKE = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")
LAST_WORDS = re.compile(r"what\(\): +(.+)")


@dataclass(frozen=True)
class Lost:
    """What happened to one rank; ``pid`` 0 where it never had a process.

    ``kind`` orders causes: what lies lower explains what lies higher.
    """

    rank: int
    pid: int
    what: str
    kind: int
    seen: Seen | None = None
    where: str = ""
    traceback: str = ""

    def error(self) -> RankError:
        """To be raised in the launcher."""
        at = f"{self.what} {self.seen or ''}".rstrip()
        error = RankError(f"{self}: {', '.join(filter(None, [at, self.where]))}")
        error.what, error.of_another = self.what, self.kind >= LEFT
        error.step = None if self.seen is None else self.seen.step
        if self.traceback:
            error.add_note(self.traceback)
        return error

    def __str__(self) -> str:
        return name_of(self.rank, self.pid)


RAISED, CRASHED, KILLED, EXITED, TOLD, LEFT, LEFT_A_WAIT = range(7)


def name_of(rank: int, pid: int) -> str:
    """What messages call a rank."""
    process = f"process {pid}" if pid else "never started"
    return f"rank {rank} ({process} on {socket.gethostname()})"


def seen_at(folder: Path, rank: int) -> Seen | None:
    """Where ``rank`` is, or was when it ended; None if it never said."""
    found = find_place(file_of(folder, rank))
    return None if found is None else found.look()


def ended(folder: Path, rank: int, pid: int, code: int) -> Lost:
    """A process that ended with ``code`` (of subprocess: below zero, a signal) and had
    more to do.
    """
    what, kind = f"ended with exit code {code}", EXITED
    if code < 0:
        what = f"killed by {_signal(-code)}"
        named = {int(signal.SIGKILL): KILLED, int(signal.SIGTERM): TOLD}
        kind = named.get(-code, CRASHED)
    where = ""
    if kind == CRASHED:
        where = str(stack.of_main_thread(stack.read(stack.file_of(folder, rank))))
        words = stack.read(stack.words_of(folder, rank))
        if unlike := UNLIKE.search(words):
            got, expected = unlike.groups()
            what = (
                f"was sent {got} bytes by another rank where it expected {expected} "
                "(their collectives or shapes differ)"
            )
        elif last := LAST_WORDS.search(words):
            what += f" ({last[1]})"
    return Lost(rank, pid, what, kind, seen_at(folder, rank), where)


def raised(folder: Path, rank: int, pid: int, line: str, traceback: str) -> Lost:
    """A rank that ended with an exception: ``line`` is its type and message."""
    where = str(stack.of_traceback(traceback))
    seen = seen_at(folder, rank)
    kind = RAISED
    if seen is not None and seen.leaving:
        # a file server may close a connection, too, and then a peer loses this rank
        kind = LEFT_A_WAIT if stack.of_traceback(traceback).waits else LEFT
    return Lost(rank, pid, " ".join(line.split()), kind, seen, where, traceback)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def early(folder: Path, pids: Mapping[int, int]) -> list[Lost]:
    """Of ranks that have ended with exit code 0 those that had more to do."""
    found = []
    for rank, pid in pids.items():
        seen = seen_at(folder, rank)
        if seen is None or (seen.phase not in AFTER and not seen.leaving):
            found.append(ended(folder, rank, pid, 0))
    return found


def began_it(failure: Lost | UserError, first: Container[int]) -> bool:
    """Whether it is of a rank that ended before any was ended, and not because of
    another: ``first`` are those that ended before a launcher could end any.
    """
    if isinstance(failure, UserError):
        return False
    return failure.rank in first and failure.kind < LEFT


def root_cause(
    failures: Iterable[Lost | UserError], first: Container[int] = ()
) -> Exception:
    """The failure to report: a user's mistake first, a rank that lost a peer last.

    A rank that :func:`began_it`, of those that were ``first``, comes before all that
    ended later.
    """

    def order(failure: Lost | UserError) -> tuple[bool, int]:
        if isinstance(failure, UserError):
            return False, -1
        return not began_it(failure, first), failure.kind

    cause = min(failures, key=order)
    return cause if isinstance(cause, UserError) else cause.error()


def waited_in_vain(error: BaseException) -> str:
    """Why a rank leaves that ``error`` ends, where others are to blame: "lost a peer",
    or "gave up" waiting; empty where the error is its own.
    """
    # what torch and we raise for a peer
    if not isinstance(error, (RuntimeError, RankError)):
        return ""
    if LOST_PEER.search(str(error)):
        return "lost a peer"
    return "gave up" if WAITED.search(str(error)) else ""
