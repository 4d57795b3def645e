"""Hosts meet before anything is started on them, and exchange the reasons why a run
failed.

They meet in a store that the first serves on one address, that of ``--rdzv-endpoint``:
torch's own server listens on every interface unless it is handed a socket. It
authenticates no client.
"""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import torch.distributed as dist

from minitrain.comm.torch_private import Store, TCPStore, limit_silence
from minitrain.core.errors import RankError, UserError
from minitrain.core.printable import note
from minitrain.harness.hosts import Hosts, family_of

POLL_S = 0.1
# to the address of a host that is there
REACH_S = 5.0
# for other hosts to report why their ranks ended: one that gets SIGTERM has 3
TOLD_S = 10.0
# the first host keeps the store until the others have left
LEAVE_S = 5.0
# a longer wait is announced
SAY_S = 5.0
# a host that does not answer for so long after all others gave up is lost
SILENT_S = 5.0
# keys of the store: why no run can begin, and the options that must be the same on all
GAVE_UP, SIZES = "gave up", "sizes"
# what lies lower explains what lies higher: a user's mistake, a rank that failed by
# itself, a rank that waited for one of another host
MISTAKE, FAILED, LEFT = range(3)
# one of these, the line, and attributes of the error; empty where all is well
Told = list[Any]


class Known(NamedTuple):
    """A host as the others know it; ``port`` is open until all have tried it."""

    number: int
    name: str
    address: str
    port: int

    def __str__(self) -> str:
        return f"host {self.number} ({self.name}, {self.address})"


class Gathering:
    """The hosts of a run, all of them there and able to reach each other; this one is
    the first of ``everyone``.
    """

    def __init__(self, hosts: Hosts, store: Store, timeout_s: float) -> None:
        self.hosts, self.store, self.timeout_s = hosts, store, timeout_s
        self.everyone: list[Known] = []
        # all hosts ask each other the same questions, one after the other
        self._question = 0
        self._ear = store

    @property
    def number(self) -> int:
        """The number of this host."""
        return self.everyone[0].number

    @property
    def attempt(self) -> str:
        """Name of the next attempt to run, the same on all hosts."""
        return f"attempt-{self._question}"

    def meet(self, world_size: int) -> None:
        """Wait for all hosts, and see that each can reach the others."""
        # a second connection: the first may be in a long wait
        self._ear = _store_at(self.hosts, self.timeout_s)
        self._require_same_sizes(world_size)
        host = self.hosts.interface.address
        # gloo's own address, which may be of another family than the endpoint
        with socket.create_server((host, 0), family=family_of(host)) as door:
            port = int(door.getsockname()[1])
            mine = Known(self._own_number(), socket.gethostname(), host, port)
            self.store.set(f"host {mine.number}", json.dumps(mine))
            self.everyone = [mine]
            self._wait_for_others()
            # what one does not reach ends the run on all
            if cause := self._exchange(self._unreached(), *2 * [self.timeout_s]):
                raise cause

    def _require_same_sizes(self, world_size: int) -> None:
        # what is typed on each host, before it counts as one of the run
        sizes = {"--nnodes": self.hosts.count, "--world-size": world_size}
        if self.hosts.is_first:
            self.store.set(SIZES, json.dumps(sizes))
        for option, first in json.loads(self.store.get(SIZES)).items():
            if sizes[option] != first:
                here = f"{socket.gethostname()} ({self.hosts.interface.address})"
                line = f"{option} = {sizes[option]} on {here}, but {first} on the first"
                self._give_up(f"{line} host")

    def _own_number(self) -> int:
        # that of --node-rank, 0 for the first, or in the order of arrival
        hosts, number = self.hosts, self.hosts.number
        if number is None:
            number = 0 if hosts.is_first else self.store.add("came", 1)
        if number >= hosts.count or self.store.add(f"sits {number}", 1) > 1:
            raise UserError(
                f"{hosts.endpoint}: all {hosts.count} hosts of the run are there, and "
                "this is one more"
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
                # by the host that has waited longest
                came = ", ".join(map(str, sorted(self.everyone)))
                waited = f"waited {self.timeout_s:g} s for {self.hosts.count} hosts"
                self._give_up(f"{self.hosts.endpoint}: {waited}: only {came} came")
            time.sleep(POLL_S)
        self.everyone[1:] = sorted(self.everyone[1:])

    def _give_up(self, line: str) -> None:
        self.store.set(GAVE_UP, line)
        raise UserError(line)

    def _unreached(self) -> UserError | None:
        for other in self.everyone[1:]:
            try:
                there = other.address, other.port
                # before the others give up waiting for the answer
                limit_s = min(REACH_S, self.timeout_s / 2)
                socket.create_connection(there, limit_s).close()
            except OSError as error:
                return UserError(
                    f"network: {self.everyone[0]} does not reach {other} by its "
                    f"interface {self.hosts.interface.name}: "
                    f"{error.strerror or error}; --interface names another, and a "
                    "firewall must let the hosts through to each other"
                )
        return None

    def agree_on(self, error: Exception | None) -> Exception | None:
        """Return the cause of what made each host's ranks end: ``error`` did here, or
        None if they ended well, as it is if they did so everywhere.

        Every host that answers gets the same; one that does not is named.
        """
        # ranks that go on elsewhere may write, then end: there, too, each has a limit
        going_on_s = 0 if error else 2 * self.timeout_s
        return self._exchange(error, going_on_s + TOLD_S, TOLD_S)

    def ended_elsewhere(self) -> bool:
        """Return true once another host has reported a failure of this attempt, or the
        first is lost.
        """
        try:
            return any(self._read(self._ear).values())
        except dist.DistError:
            return True

    def _read(self, store: Store) -> dict[int, Told]:
        found = {}
        for one in self.everyone:
            key = f"{self._question} {one.number}"
            if store.check([key]):
                found[one.number] = json.loads(store.get(key))
        return found

    def _exchange(
        self, error: Exception | None, within_s: float, after_error_s: float
    ) -> Exception | None:
        # send the others the error, or that there is none -> the first cause
        told: dict[int, Told] = {self.number: _as_plain(error)}
        first_is_lost = False
        try:
            key = f"{self._question} {self.number}"
            self.store.set(key, json.dumps(told[self.number]))
            self._hear(told, within_s, after_error_s)
        except dist.DistError:
            first_is_lost = True
        self._question += 1
        causes = [(one[0], number) for number, one in told.items() if one]
        order, number = min(causes, default=(LEFT, self.number))
        cause = error
        if number != self.number:
            host = next(one for one in self.everyone if one.number == number)
            cause = _from_plain(told[number], host, error)
        silent = [str(one) for one in self.everyone if one.number not in told]
        if not silent or order < LEFT:
            return cause
        # the reports of the others were lost with the first
        names = ", ".join(silent[:1] if first_is_lost else silent)
        return UserError(f"no word from {names}{f'; {cause}' if cause else ''}")

    def _hear(
        self, told: dict[int, Told], within_s: float, after_error_s: float
    ) -> None:
        # no longer than after_error_s after the first error, which ends the others
        began = time.monotonic()
        deadline, said = began + within_s, False
        while True:
            told |= self._read(self.store)
            now = time.monotonic()
            if any(told[n] for n in told if n != self.number):
                deadline = min(deadline, now + after_error_s)
            missing = [str(one) for one in self.everyone if one.number not in told]
            if not missing or now > deadline:
                return
            if not said and now - began > SAY_S:
                said = True
                left_s = f"{deadline - now:.0f} s at most"
                note(f"waiting for {', '.join(missing)}, {left_s}")
            time.sleep(POLL_S)

    def leave(self) -> None:
        """Say so, and as the first host wait for the others to have left."""
        with suppress(dist.DistError):
            if self.everyone:
                self.store.set(f"left {self.number}", "")
            if self.hosts.is_first:
                others = range(1, self.hosts.count)
                keys = [f"left {n}" for n in others if self.store.check([f"host {n}"])]
                self.store.wait(keys, timedelta(seconds=LEAVE_S))


@contextmanager
def gathered(hosts: Hosts, timeout_s: float, world_size: int) -> Iterator[Gathering]:
    """All ``hosts``, as soon as they are there; it waits ``timeout_s`` at most.

    Raises UserError if a host does not come, has other sizes than the first, or does
    not reach another.
    """
    store = _serve(hosts, timeout_s) if hosts.is_first else find(hosts, timeout_s)
    gathering = Gathering(hosts, store, timeout_s)
    try:
        gathering.meet(world_size)
        yield gathering
    except dist.DistStoreError as error:
        line = f"a host did not answer within {timeout_s:g} s"
        raise UserError(f"{hosts.endpoint}: {line}") from error
    except dist.DistError as error:
        raise UserError(f"{hosts.endpoint}: the first host has gone") from error
    finally:
        gathering.leave()


def _as_plain(error: Exception | None) -> Told:
    if error is None:
        return []
    if isinstance(error, UserError):
        return [MISTAKE, str(error), {}]
    of_another = isinstance(error, RankError) and error.of_another
    return [LEFT if of_another else FAILED, str(error), vars(error)]


def _from_plain(told: Told, host: Known, own: Exception | None) -> Exception:
    order, line, facts = told
    if order == MISTAKE:
        return UserError(line if line == str(own) else f"{host}: {line}")
    error = RankError(line)
    vars(error).update(facts)
    return error


def _serve(hosts: Hosts, timeout_s: float) -> Store:
    place = hosts.address, hosts.port
    try:
        door = socket.create_server(place, family=family_of(hosts.address), backlog=128)
    except OSError as error:
        raise UserError(
            f"--rdzv-endpoint: {hosts.endpoint}: {error.strerror}; where several hosts "
            "of a run share an address, --node-rank tells them apart"
        ) from None
    note(f"waiting at {hosts.endpoint} for {hosts.count - 1} more")
    return TCPStore(
        *place,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout_s),
        # the store closes it
        master_listen_fd=door.detach(),
    )


def find(hosts: Hosts, timeout_s: float) -> Store:
    """The store of the first host, as soon as it is there.

    Raises UserError if nothing answers within ``timeout_s``, or another program.
    """
    note(f"waiting for the first host, at {hosts.endpoint}")
    deadline = time.monotonic() + timeout_s
    # torch would print a warning each time that nothing listens yet
    while True:
        left_s = deadline - time.monotonic()
        try:
            place = hosts.address, hosts.port
            socket.create_connection(place, max(POLL_S, left_s)).close()
            break
        except OSError as error:
            if left_s < POLL_S:
                raise UserError(
                    f"--rdzv-endpoint: {hosts.endpoint}: no answer within "
                    f"{timeout_s:g} s ({error.strerror or error}): the first host does "
                    "not listen there, or a firewall is between"
                ) from None
        time.sleep(POLL_S)
    found: SimpleQueue[Store | None] = SimpleQueue()

    def connect() -> None:
        with suppress(dist.DistError):
            found.put(_store_at(hosts, timeout_s))
        found.put(None)

    # torch waits without a limit for a server that accepts, and then sends nothing
    threading.Thread(target=connect, daemon=True).start()
    store = None
    with suppress(Empty):
        store = found.get(timeout=max(1.0, deadline - time.monotonic()))
    if store is None:
        raise UserError(
            f"--rdzv-endpoint: {hosts.endpoint}: what answers there is no run of "
            "minitrain, or one that has just ended"
        )
    return store


def _store_at(hosts: Hosts, timeout_s: float) -> Store:
    limit, place = timedelta(seconds=timeout_s), (hosts.address, hosts.port)
    store = TCPStore(*place, wait_for_workers=False, timeout=limit)
    limit_silence(*place, timeout_s + SILENT_S)
    return store
