"""Host-level rendezvous before launch, and exchange of failure reasons between hosts.

The first host serves a TCPStore on the address of ``--rdzv-endpoint`` only: torch's
server listens on every interface unless it is given a socket. It has no authentication.
"""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch.distributed as dist

from minitrain.comm.torch_private import Store, TCPStore
from minitrain.core.errors import RankError, UserError
from minitrain.core.printable import print_note
from minitrain.harness.hosts import Hosts, family_of

POLL_S = 0.1
# limit on connecting to the address of a host
REACH_S = 5.0
# limit for other hosts to report why their ranks ended; SIGTERM leaves a host 3 s
REPORTS_S = 10.0
# the first host serves the store until the others have left, at most this long
LEAVE_S = 5.0
# a store that does not answer for this long after the time limit is lost
SILENT_S = 5.0
# keys of the store: why the run cannot start; options that must be equal on all hosts
GAVE_UP, SIZES = "gave up", "sizes"
T = TypeVar("T")
# a lower kind is the likely cause of a higher one: a user's mistake, a failed rank, a
# rank that waited for a rank of another host
MISTAKE, FAILED, LEFT = range(3)
# one of these, the message and the attributes of the error; empty for success
Report = list[Any]


def within(limit_s: float, call: Callable[[], T]) -> T:
    """Return the result of ``call``, which uses a store, or raise its exception; raise
    DistNetworkError after ``limit_s`` seconds: torch waits forever for a server that is
    stopped, or that is another program.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except Exception as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return result.result(limit_s)
    except TimeoutError:
        raise dist.DistNetworkError(f"no answer within {limit_s:g} s") from None


class Known(NamedTuple):
    """Entry of a host in the store. ``name``: hostname; ``address`` and ``port``: where
    all other hosts try to connect, to check the network.
    """

    number: int
    name: str
    address: str
    port: int

    def __str__(self) -> str:
        return f"host {self.number} ({self.name}, {self.address})"


class HostRendezvous:
    """Connection of this host to the other hosts of a run, through ``store``; created
    by :func:`join_hosts`. After :meth:`join`, ``everyone`` lists this host, then the
    other hosts by number. ``timeout_s`` limits waits for other hosts.
    """

    def __init__(self, hosts: Hosts, store: Store, timeout_s: float) -> None:
        self.hosts, self.store, self.timeout_s = hosts, store, timeout_s
        self.everyone: list[Known] = []
        # number of exchanges so far, the same on all hosts
        self._exchanges = 0
        # whether the first host, which serves the store, did not answer
        self._is_lost = False

    @property
    def number(self) -> int:
        """Number of this host, from 0."""
        return self.everyone[0].number

    @property
    def attempt(self) -> str:
        """Name of the next attempt to run the ranks, the same on all hosts."""
        return f"attempt-{self._exchanges}"

    def join(self, world_size: int) -> None:
        """Wait for all hosts, and check that each host can connect to the others. Every
        host calls this with the same ``world_size``. Raises UserError if a check fails.
        """
        self._require_same_sizes(world_size)
        host = self.hosts.interface.address
        # the address that gloo uses, whose family may differ from the endpoint's
        with socket.create_server((host, 0), family=family_of(host)) as listener:
            port = int(listener.getsockname()[1])
            mine = Known(self._own_number(), socket.gethostname(), host, port)
            self.store.set(f"host {mine.number}", json.dumps(mine))
            self.everyone = [mine]
            self._wait_for_others()
            # an unreachable host fails the run on all hosts
            if cause := self._exchange(self._unreached(), self.timeout_s):
                raise cause

    def _require_same_sizes(self, world_size: int) -> None:
        # before this host counts as a member of the run
        sizes = f"--nnodes = {self.hosts.count}, --world-size = {world_size}"
        if self.hosts.is_first:
            self.store.set(SIZES, sizes)
        if (first := self.store.get(SIZES).decode()) != sizes:
            here = f"{socket.gethostname()} ({self.hosts.interface.address})"
            self._give_up(f"{sizes} on {here}, but {first} on the first host")

    def _own_number(self) -> int:
        # --node-rank, 0 for the first host, or the order of arrival
        hosts, number = self.hosts, self.hosts.number
        if number is None:
            number = 0 if hosts.is_first else self.store.add("arrived", 1)
        if number >= hosts.count or self.store.add(f"taken {number}", 1) > 1:
            raise UserError(
                f"{hosts.endpoint}: all {hosts.count} hosts of the run have joined "
                "already, or --node-rank is in use"
            )
        return number

    def _wait_for_others(self) -> None:
        missing = [n for n in range(self.hosts.count) if n != self.number]
        deadline = time.monotonic() + self.timeout_s
        while missing:
            for number in [n for n in missing if self.store.check([f"host {n}"])]:
                found = Known(*json.loads(self.store.get(f"host {number}")))
                self.everyone.append(found)
                missing.remove(number)
            if self.store.check([GAVE_UP]):
                raise UserError(self.store.get(GAVE_UP).decode())
            if missing and time.monotonic() > deadline:
                # reported by the host that has waited longest
                joined = ", ".join(map(str, sorted(self.everyone)))
                waited = f"waited {self.timeout_s:g} s for {self.hosts.count} hosts"
                self._give_up(f"{self.hosts.endpoint}: {waited}: only {joined} joined")
            time.sleep(POLL_S)
        self.everyone[1:] = sorted(self.everyone[1:])

    def _give_up(self, line: str) -> None:
        self.store.set(GAVE_UP, line)
        raise UserError(line)

    def _unreached(self) -> UserError | None:
        for other in self.everyone[1:]:
            try:
                there = other.address, other.port
                # shorter than the wait of the others for this result
                limit_s = min(REACH_S, self.timeout_s / 2)
                socket.create_connection(there, limit_s).close()
            except OSError as error:
                return UserError(
                    f"network: {self.everyone[0]} cannot connect to {other} over its "
                    f"interface {self.hosts.interface.name}: "
                    f"{error.strerror or error}; choose another with --interface, or "
                    "open the firewall between the hosts"
                )
        return None

    def agree_on(self, error: Exception | None) -> Exception | None:
        """Exchange failures between hosts after the ranks of this host have exited, and
        return the root cause; None if the ranks of all hosts succeeded.

        ``error``: failure on this host, or None. All hosts that answer get the same
        root cause; if a host does not answer, a UserError that names it is returned,
        unless another cause is known.
        """
        # ranks elsewhere may still be finishing, each within its own limit
        going_on_s = 0 if error else 2 * self.timeout_s
        return self._exchange(error, going_on_s + REPORTS_S)

    def ended_elsewhere(self) -> bool:
        """Return True once another host failed in this attempt, or host 0 is lost."""
        try:
            # ranks that wait for those of a lost host report it before
            return any(within(self.timeout_s + SILENT_S, self._read).values())
        except dist.DistError:
            self._is_lost = True
            return True

    def _read(self) -> dict[int, Report]:
        keys = {one.number: f"{self._exchanges} {one.number}" for one in self.everyone}
        there = {n: key for n, key in keys.items() if self.store.check([key])}
        return {n: json.loads(self.store.get(key)) for n, key in there.items()}

    def _exchange(self, error: Exception | None, within_s: float) -> Exception | None:
        # all-gather the errors of all hosts, and return the root cause
        mine = _as_plain(error)
        reports = {self.number: mine}

        def collect() -> None:
            self.store.set(f"{self._exchanges} {self.number}", json.dumps(mine))
            deadline = time.monotonic() + within_s
            while len(reports) < len(self.everyone) and time.monotonic() < deadline:
                time.sleep(POLL_S)
                reports.update(self._read())
                # an error ends the ranks of the other hosts, too
                if any(reports[n] for n in reports if n != self.number):
                    deadline = min(deadline, time.monotonic() + REPORTS_S)

        try:
            within(SILENT_S if self._is_lost else within_s + SILENT_S, collect)
        except dist.DistError:
            self._is_lost = True
        self._exchanges += 1
        causes = [(one[0], number) for number, one in reports.items() if one]
        order, number = min(causes, default=(LEFT, self.number))
        cause = error
        if number != self.number:
            host = next(one for one in self.everyone if one.number == number)
            cause = _from_plain(reports[number], host, error)
        silent = [str(one) for one in self.everyone if one.number not in reports]
        if not silent or order < LEFT:
            return cause
        # with the first host, the reports of all others are lost
        names = ", ".join(silent[:1] if self._is_lost else silent)
        return UserError(f"no answer from {names}{f'; {cause}' if cause else ''}")

    def leave(self) -> None:
        """Announce that this host leaves the run; the first host, which serves the
        store, then waits up to LEAVE_S seconds for the others to leave.
        """
        if not self._is_lost:
            with suppress(dist.DistError):
                within(2 * LEAVE_S, self._leave)

    def _leave(self) -> None:
        if self.everyone:
            self.store.set(f"left {self.number}", "")
        if self.hosts.is_first:
            others = range(1, self.hosts.count)
            keys = [f"left {n}" for n in others if self.store.check([f"host {n}"])]
            self.store.wait(keys, timedelta(seconds=LEAVE_S))


@contextmanager
def join_hosts(
    hosts: Hosts, timeout_s: float, world_size: int
) -> Iterator[HostRendezvous]:
    """Context manager: wait for all hosts, at most ``timeout_s`` seconds, and yield
    their rendezvous.

    ``hosts``: options of this host. Raises UserError if a host is missing, its options
    or ``world_size`` differ from the first host's, a host cannot connect to another,
    or the first host is lost while the body runs.
    """
    store = _serve(hosts, timeout_s) if hosts.is_first else find(hosts, timeout_s)
    rendezvous = HostRendezvous(hosts, store, timeout_s)
    try:
        # it waits for the first host, for all hosts and for their reports
        limit_s = 3 * timeout_s + SILENT_S
        within(limit_s, lambda: rendezvous.join(world_size))
        yield rendezvous
    except dist.DistStoreError as error:
        line = f"a host did not answer within {timeout_s:g} s"
        raise UserError(f"{hosts.endpoint}: {line}") from error
    except dist.DistError as error:
        raise UserError(f"{hosts.endpoint}: lost the first host") from error
    finally:
        rendezvous.leave()


def _as_plain(error: Exception | None) -> Report:
    if error is None:
        return []
    if isinstance(error, UserError):
        return [MISTAKE, str(error), {}]
    of_another = isinstance(error, RankError) and error.of_another
    return [LEFT if of_another else FAILED, str(error), vars(error)]


def _from_plain(report: Report, host: Known, own: Exception | None) -> Exception:
    order, line, facts = report
    if order == MISTAKE:
        return UserError(line if line == str(own) else f"{host}: {line}")
    error = RankError(line)
    vars(error).update(facts)
    return error


def _serve(hosts: Hosts, timeout_s: float) -> Store:
    place = hosts.address, hosts.port
    try:
        family = family_of(hosts.address)
        listener = socket.create_server(place, family=family, backlog=128)
    except OSError as error:
        raise UserError(
            f"--rdzv-endpoint: {hosts.endpoint}: {error.strerror}; if several hosts of "
            "a run share an address, set --node-rank on each"
        ) from None
    print_note(f"waiting at {hosts.endpoint} for {hosts.count - 1} more")
    return TCPStore(
        *place,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout_s),
        # the store closes it
        master_listen_fd=listener.detach(),
    )


def find(hosts: Hosts, timeout_s: float) -> Store:
    """Connect to the store of the first host, retrying for ``timeout_s`` seconds.
    Raises UserError if no process answers, or a program other than minitrain does.
    """
    print_note(f"waiting for the first host, at {hosts.endpoint}")
    deadline, place = time.monotonic() + timeout_s, (hosts.address, hosts.port)
    # not by TCPStore, which prints a warning for each refused connection
    while True:
        left_s = deadline - time.monotonic()
        try:
            socket.create_connection(place, max(POLL_S, left_s)).close()
            break
        except OSError as error:
            if left_s < POLL_S:
                raise UserError(
                    f"--rdzv-endpoint: {hosts.endpoint}: no answer within "
                    f"{timeout_s:g} s ({error.strerror or error}): the first host is "
                    "not running, or a firewall blocks the connection"
                ) from None
        time.sleep(POLL_S)
    limit_s = max(1.0, deadline - time.monotonic())
    limit = timedelta(seconds=timeout_s)
    try:
        return within(
            limit_s, lambda: TCPStore(*place, wait_for_workers=False, timeout=limit)
        )
    except dist.DistError:
        raise UserError(
            f"--rdzv-endpoint: {hosts.endpoint}: answered by another program, or by a "
            "minitrain run that has just ended"
        ) from None
