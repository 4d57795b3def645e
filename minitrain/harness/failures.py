"""The failure report: how a rank ended, as one line, and which rank is the cause."""

import re
import signal
import socket
import traceback
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import cloudpickle

from minitrain.comm.heartbeat import AFTER, Seen, file_of, find_place
from minitrain.core.errors import RankError, UserError
from minitrain.harness import stack_dump as stack

# errors of gloo, NCCL, torch's stores and our sockets for a rank that went away ...
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
# Kinds of a failure: what lies lower explains what lies higher. A rank that LEFT had a
# connection closed, be it by a file server; one that LOST a peer was waiting for it.
RAISED, CRASHED, KILLED, EXITED, TOLD, LEFT, LOST, GAVE_UP = range(8)
Failure = RankError | UserError


def name_of(rank: int, pid: int) -> str:
    """Name of a rank in messages."""
    process = f"process {pid}" if pid else "never started"
    return f"rank {rank} ({process} on {socket.gethostname()})"


def failure_by(error: BaseException, rank: int, pid: int, seen: Seen) -> Failure:
    """The failure of a rank whose ``error`` is being handled."""
    if isinstance(error, UserError):
        return error
    line = " ".join(f"{type(error).__name__}: {error}".split())
    text = traceback.format_exc()
    found = stack.Stack(text, innermost_last=True)
    failure = _failure(rank, pid, line, kind_of(error, found), seen, str(found))
    failure.add_note(text)
    return failure


def kind_of(error: BaseException, found: stack.Stack) -> int:
    """LEFT, LOST or GAVE_UP for an ``error`` that another rank caused, else RAISED."""
    # what torch and we raise for a peer
    if not isinstance(error, (RuntimeError, RankError)):
        return RAISED
    if LOST_PEER.search(str(error)):
        return LOST if found.waits else LEFT
    return GAVE_UP if WAITED.search(str(error)) else RAISED


def _failure(
    rank: int, pid: int, what: str, kind: int, seen: Seen | None, where: str
) -> RankError:
    at = f"{what} {seen or ''}".rstrip()
    error = RankError(f"{name_of(rank, pid)}: {', '.join(filter(None, [at, where]))}")
    error.rank, error.what, error.kind = rank, what, kind
    error.of_another = kind >= LEFT
    error.step = None if seen is None else seen.step
    return error


def write_report(folder: Path, rank: int, failure: Failure) -> None:
    """Leave ``failure`` in the run's ``folder``, all of it or nothing."""
    file = file_of(folder, rank, "report")
    begun = file.with_suffix(".tmp")
    begun.write_bytes(cloudpickle.dumps(failure))
    begun.rename(file)


def read_report(folder: Path, rank: int) -> Failure | None:
    """The failure that ``rank`` has reported; None as long as there is none."""
    found: Failure | None = None
    with suppress(FileNotFoundError):
        found = cloudpickle.loads(file_of(folder, rank, "report").read_bytes())
    return found


def failures_of(
    folder: Path, pids: Mapping[int, int], codes: Mapping[int, int]
) -> list[Failure]:
    """Failures of ranks that have ended, with exit code 0 unless in ``codes`` (of
    subprocess: below zero, a signal).
    """
    found = [_failure_of(folder, r, pid, codes.get(r, 0)) for r, pid in pids.items()]
    return [one for one in found if one is not None]


def _failure_of(folder: Path, rank: int, pid: int, code: int) -> Failure | None:
    if report := read_report(folder, rank):
        return report
    place = find_place(file_of(folder, rank))
    seen = None if place is None else place.look()
    if code == 0 and seen is not None and seen.phase in AFTER:
        return None
    what, kind, where = _ended(folder, rank, code)
    return _failure(rank, pid, what, kind, seen, where)


def _ended(folder: Path, rank: int, code: int) -> tuple[str, int, str]:
    if code >= 0:
        return f"ended with exit code {code}", EXITED, ""
    names = {one.value: one.name for one in signal.Signals}
    what = f"killed by {names.get(-code, f'signal {-code}')}"
    if -code in (signal.SIGKILL, signal.SIGTERM):
        return what, KILLED if -code == signal.SIGKILL else TOLD, ""
    where = str(stack.of_crash(stack.read(file_of(folder, rank, "stack"))))
    words = stack.native_words(folder, [rank])
    if unlike := UNLIKE.search(words):
        got, expected = unlike.groups()
        what = (
            f"was sent {got} bytes by another rank where it expected {expected} "
            "(their collectives or shapes differ)"
        )
    elif last := LAST_WORDS.search(words):
        what += f" ({last[1]})"
    return what, CRASHED, where


def began_it(failure: Failure, first: Container[int | None]) -> bool:
    """Return true for a rank that ended before any was ended (is in ``first``), and not
    because of another.
    """
    if isinstance(failure, UserError):
        return False
    return failure.rank in first and failure.kind < LEFT


def root_cause(
    failures: Sequence[Failure], first: Container[int | None] = ()
) -> Failure | None:
    """The failure to report: a user's mistake first, a rank that lost a peer last.

    A rank that :func:`began_it`, of those that were ``first``, comes before all that
    ended later.
    """

    def order(failure: Failure) -> tuple[bool, int]:
        if isinstance(failure, UserError):
            return False, -1
        return not began_it(failure, first), failure.kind

    return min(failures, key=order, default=None)
