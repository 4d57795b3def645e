"""Failure reports of ranks, one line each, and selection of the root cause."""

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

# errors of gloo, NCCL, torch's stores and our sockets if a peer exited ...
LOST_PEER = re.compile(
    r"closed by (remote )?peer|reset by peer|Broken pipe|caused pair closure"
    r"|Connection refused|remote process exit|ncclRemoteError",
    re.I,
)
# ... or did not respond
WAITED = re.compile(
    r"Timed out waiting \d+ ?ms|socket .*timed out after \d+ ?ms|wait timeout"
    r"|Socket Timeout"
    r"|no answer within",
    re.I,
)
# Kinds of failure: a lower kind is the likely cause of a higher one. LOST: another rank
# closed its connection; GAVE_UP: a wait timed out.
RAISED, CRASHED, KILLED, EXITED, TERMINATED, LOST, GAVE_UP = range(7)
Failure = RankError | UserError


def name_of(rank: int, pid: int) -> str:
    """Return the name of a rank in messages, with its pid and host."""
    return f"rank {rank} (process {pid} on {socket.gethostname()})"


def failure_by(error: BaseException, rank: int, pid: int, seen: Seen) -> Failure:
    """Convert ``error``, which is being handled in a rank, to a RankError that names
    the rank; return a UserError unchanged. ``seen``: last heartbeat of the rank.
    """
    if isinstance(error, UserError):
        return error
    line = " ".join(f"{type(error).__name__}: {error}".split())
    text = traceback.format_exc()
    where = str(stack.Stack(text, innermost_last=True))
    failure = _failure(rank, pid, line, kind_of(error), seen, where)
    failure.add_note(text)
    return failure


def kind_of(error: BaseException) -> int:
    """Return LOST or GAVE_UP if another rank caused ``error``, else RAISED."""
    # torch and minitrain raise only these for a peer
    if not isinstance(error, (RuntimeError, RankError)):
        return RAISED
    if LOST_PEER.search(str(error)):
        return LOST
    return GAVE_UP if WAITED.search(str(error)) else RAISED


def _failure(
    rank: int, pid: int, what: str, kind: int, seen: Seen | None, where: str
) -> RankError:
    at = f"{what} {seen or ''}".rstrip()
    error = RankError(f"{name_of(rank, pid)}: {', '.join(filter(None, [at, where]))}")
    error.rank, error.kind, error.of_another = rank, kind, kind >= LOST
    return error


def write_report(folder: Path, rank: int, failure: Failure) -> None:
    """Write ``failure`` into the run's ``folder`` for the launcher, atomically."""
    file = file_of(folder, rank, "report")
    begun = file.with_suffix(".tmp")
    begun.write_bytes(cloudpickle.dumps(failure))
    begun.rename(file)


def read_report(folder: Path, rank: int) -> Failure | None:
    """Return the failure that ``rank`` has reported, or None."""
    found: Failure | None = None
    with suppress(FileNotFoundError):
        found = cloudpickle.loads(file_of(folder, rank, "report").read_bytes())
    return found


def failures_of(
    folder: Path, pids: Mapping[int, int], codes: Mapping[int, int]
) -> list[Failure]:
    """Return the failures of ranks, all of which have exited. ``pids`` and ``codes``:
    process ids and exit codes by rank; a code is negative for a signal, and 0 if
    missing. A rank that exits with code 0 before its work is done has failed, too.
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
    # what happened, its kind, and where
    if code >= 0:
        return f"exited with code {code}", EXITED, ""
    names = {one.value: one.name for one in signal.Signals}
    what = f"killed by {names.get(-code, f'signal {-code}')}"
    if -code in (signal.SIGKILL, signal.SIGTERM):
        return what, KILLED if -code == signal.SIGKILL else TERMINATED, ""
    # a crash dump ends with the main thread
    dump = stack.read(file_of(folder, rank, "stack"))
    return what, CRASHED, str(stack.Stack(dump.rpartition("Thread 0x")[2]))


def began_it(failure: RankError, first: Container[int | None]) -> bool:
    """Return True if the rank is in ``first`` (ranks that exited before any rank was
    terminated) and another rank did not cause its failure.
    """
    return failure.rank in first and failure.kind < LOST


def root_cause(
    failures: Sequence[Failure], first: Container[int | None] = ()
) -> Failure | None:
    """Return the likely root cause among ``failures``, to report; None if there are
    none. It is a UserError, else a failure that :func:`began_it` (see ``first`` there),
    else one of the lowest kind; lost connections and timeouts have the highest kinds.
    """

    def order(failure: Failure) -> tuple[bool, int]:
        if isinstance(failure, UserError):
            return False, -1
        # ranks that were ended after the first exit did not cause it
        is_late = bool(first) and failure.rank not in first
        was_ended = is_late and failure.kind in (KILLED, TERMINATED)
        return not began_it(failure, first), GAVE_UP if was_ended else failure.kind

    return min(failures, key=order, default=None)
