"""Hosts come together before anything is started on them, and tell each other why a
run failed.

They meet in a store that the first serves on one address, that of ``--rdzv-endpoint``:
torch's own server listens on every interface unless it is handed a socket. It
authenticates no client.
"""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import torch.distributed as dist

from minitrain.comm.interfaces import family_of
from minitrain.comm.store import store_at
from minitrain.comm.torch_private import Store, TCPStore
from minitrain.core.errors import RankError, UserError, describe_os_error
from minitrain.core.printable import note
from minitrain.harness.hosts import Hosts

POLL_S = 0.1
# to the address of a host that is there
REACH_S = 5.0
# for other hosts to say why their ranks ended: a rank that is told to end has 3
TOLD_S = 10.0
# the first host keeps the store until the others have left
LEAVE_S = 5.0
# a longer wait is announced
SAY_S = 5.0
GAVE_UP = "gave up"


class Known(NamedTuple):
    """A host as the others know it; ``port`` is open until all have tried it, and
    ``sizes`` are the options that must be the same on all.
    """

    number: int
    name: str
    address: str
    port: int
    sizes: dict[str, int]

    def __str__(self) -> str:
        return f"host {self.number} ({self.name}, {self.address})"


class Gathering:
    """The hosts of a run, all of them there and able to reach each other; this one is
    the first of ``everyone``.
    """

    def __init__(
        self, hosts: Hosts, store: Store, timeout_s: float, world_size: int
    ) -> None:
        self.hosts, self.store, self.timeout_s = hosts, store, timeout_s
        # what is typed on each host
        self._sizes = {"--nnodes": hosts.count, "--world-size": world_size}
        self.everyone: list[Known] = []
        # all hosts ask each other the same questions, one after the other
        self._question = 0
        # by host: the error that ended its part of it, {} where all is well
        self._told: dict[int, dict[str, Any]] = {}
        self._ear = store
        self._lost_first = False

    @property
    def number(self) -> int:
        """The number of this host."""
        return self.everyone[0].number

    def meet(self) -> None:
        """Wait for all hosts, and see that each can reach the others."""
        # of its own: a question that waits for long keeps no other from being asked
        limit = timedelta(seconds=self.timeout_s)
        self._ear = store_at(self.hosts.address, self.hosts.port, limit)
        host = self.hosts.interface.address
        # gloo's own address, which may be of another family than the endpoint
        with socket.create_server((host, 0), family=family_of(host)) as door:
            here = self._own_number(), socket.gethostname(), host
            mine = Known(*here, int(door.getsockname()[1]), self._sizes)
            self.store.set(f"host {mine.number}", json.dumps(mine))
            self.everyone = [mine]
            self._wait_for_others()
            self.everywhere(self._require_reach)

    def _own_number(self) -> int:
        # as it was told, 0 for the first, or as they come
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
            for number in [n for n in missing if self._has(f"host {n}")]:
                found = Known(*json.loads(self.store.get(f"host {number}")))
                self.everyone.append(found)
                self._require_same_sizes(found)
                missing.remove(number)
            # by the host that has waited longest
            if self._has(GAVE_UP):
                raise UserError(self.store.get(GAVE_UP).decode())
            if missing and time.monotonic() > deadline:
                came = ", ".join(map(str, sorted(self.everyone)))
                waited = f"waited {self.timeout_s:g} s for {self.hosts.count} hosts"
                line = f"{self.hosts.endpoint}: {waited}: only {came} came"
                self.store.set(GAVE_UP, line)
            elif missing:
                time.sleep(POLL_S)
        self.everyone[1:] = sorted(self.everyone[1:])

    def _require_same_sizes(self, other: Known) -> None:
        first, second = sorted([self.everyone[0], other])
        for option, value in second.sizes.items():
            if value != first.sizes[option]:
                raise UserError(
                    f"{option} = {value} on {second}, but {first.sizes[option]} on "
                    f"{first}"
                )

    def _require_reach(self) -> None:
        for other in self.everyone[1:]:
            try:
                there = other.address, other.port
                # before the others give up waiting for the answer
                limit_s = min(REACH_S, self.timeout_s / 2)
                socket.create_connection(there, limit_s).close()
            except OSError as error:
                raise UserError(
                    f"network: {self.everyone[0]} does not reach {other} by its "
                    f"interface {self.hosts.interface.name}: "
                    f"{error.strerror or error}; --interface names another, and a "
                    "firewall must let the hosts through to each other"
                ) from None

    def _has(self, key: str) -> bool:
        try:
            return bool(self.store.check([key]))
        except dist.DistError:
            raise UserError(f"{self.hosts.endpoint}: the first host has gone") from None

    def begin_attempt(self) -> str:
        """Name the next attempt to run, the same on all hosts.

        Raises UserError if a host has left.
        """
        for other in self.everyone[1:]:
            if self._has(f"left {other.number}"):
                raise UserError(f"{other} has left the run")
        return f"attempt-{self._question}"

    def everywhere(self, action: Callable[[], None]) -> None:
        """Call ``action`` on all hosts; a UserError of one is raised on all of them."""
        mistake: Exception | None = None
        try:
            action()
        except UserError as error:
            mistake = error
        except OSError as error:
            mistake = UserError(describe_os_error(error))
        if cause := self._exchange(mistake, self.timeout_s, self.timeout_s):
            raise cause

    def agree_on(self, error: Exception | None) -> Exception | None:
        """Return the cause of what made each host's ranks end: ``error`` did here, or
        None if they ended well, as it is if they did so everywhere.

        Every host that answers gets the same; one that does not is named.
        """
        # ranks that go on elsewhere may write, then end: there, too, each has a limit
        going_on_s = 0 if error else 2 * self.timeout_s
        return self._exchange(error, going_on_s + TOLD_S, TOLD_S)

    def ended_elsewhere(self) -> bool:
        """Return true once another host has told what ended its ranks in this attempt,
        or the first is lost.
        """
        try:
            return self._read(self._ear)
        except dist.DistError:
            self._lost_first = True
            return True

    def _read(self, store: Store) -> bool:
        told, question = self._told, self._question
        for other in self.everyone[1:]:
            key = f"{question} {other.number}"
            if other.number not in told and store.check([key]):
                told[other.number] = json.loads(store.get(key))
        return any(told.values())

    def _exchange(
        self, error: Exception | None, within_s: float, after_error_s: float
    ) -> Exception | None:
        # tell the others of an error, or that there is none -> the first cause
        key = f"{self._question} {self.number}"
        with suppress(dist.DistError):
            self.store.set(key, json.dumps(_as_plain(error)))
        # the watch, which asks too, may find the first lost after all was heard here
        lost = self._lost_first
        try:
            if not lost:
                self._hear(within_s, after_error_s)
        except dist.DistError:
            lost = self._lost_first = True
        told, self._told = self._told, {}
        self._question += 1
        found, silent = {self.number: error}, []
        for other in self.everyone[1:]:
            if other.number not in told:
                silent.append(str(other))
                continue
            one = _from_plain(told[other.number])
            if isinstance(one, UserError) and str(one) != str(error):
                one = UserError(f"{other}: {one}")
            found[other.number] = one
        causes = [(_order(one), number) for number, one in found.items() if one]
        order, number = min(causes, default=(2, self.number))
        cause = found[number]
        if not silent or order < 2:
            return cause
        # with the first went what the others would have told
        names = ", ".join(silent[:1] if lost else silent)
        return UserError(f"no word from {names}{f'; {cause}' if cause else ''}")

    def _hear(self, within_s: float, after_error_s: float) -> None:
        # no longer than after_error_s after the first that tells an error, since the
        # others will end of it
        began = time.monotonic()
        deadline, said = began + within_s, False
        while True:
            if self._read(self.store):
                deadline = min(deadline, time.monotonic() + after_error_s)
            others = self.everyone[1:]
            missing = [str(one) for one in others if one.number not in self._told]
            now = time.monotonic()
            if not missing or now > deadline:
                return
            if not said and now - began > SAY_S:
                said = True
                left_s = f"{deadline - now:.0f} s at most"
                note(f"waiting for {', '.join(missing)}, {left_s}")
            time.sleep(POLL_S)

    def leave(self) -> None:
        """Say so, and as the first host wait for the others to have left."""
        if not self.everyone:
            return
        others = [n for n in range(self.hosts.count) if n != self.number]
        with suppress(dist.DistError, UserError):
            self.store.set(f"left {self.number}", "")
            if self.hosts.is_first:
                keys = [f"left {n}" for n in others if self._has(f"host {n}")]
                self.store.wait(keys, timedelta(seconds=LEAVE_S))


@contextmanager
def gathered(hosts: Hosts, timeout_s: float, world_size: int) -> Iterator[Gathering]:
    """All ``hosts``, as soon as they are there; it waits ``timeout_s`` at most.

    Raises UserError if a host does not come, was told that the run has other than
    ``world_size`` ranks, or does not reach another.
    """
    store = _serve(hosts, timeout_s) if hosts.is_first else find(hosts, timeout_s)
    gathering = Gathering(hosts, store, timeout_s, world_size)
    try:
        gathering.meet()
        yield gathering
    except dist.DistStoreError as error:
        line = f"a host did not answer within {timeout_s:g} s"
        raise UserError(f"{hosts.endpoint}: {line}") from error
    except dist.DistError as error:
        raise UserError(f"{hosts.endpoint}: the first host has gone") from error
    finally:
        gathering.leave()


def _order(error: Exception) -> int:
    # what lies lower explains what lies higher: a user's mistake, a rank that failed by
    # itself, a rank that waited for one of another host
    if isinstance(error, UserError):
        return 0
    return 2 if isinstance(error, RankError) and error.of_another else 1


def _as_plain(error: Exception | None) -> dict[str, Any]:
    if error is None:
        return {}
    mistake = isinstance(error, UserError)
    facts = {} if mistake else vars(error)
    return {"mistake": mistake, "line": str(error), "facts": facts}


def _from_plain(told: dict[str, Any]) -> Exception | None:
    if not told:
        return None
    error = (UserError if told["mistake"] else RankError)(told["line"])
    vars(error).update(told["facts"])
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
    _until_open(hosts, deadline, timeout_s)
    found: SimpleQueue[Store | None] = SimpleQueue()

    def connect() -> None:
        try:
            limit = timedelta(seconds=timeout_s)
            found.put(store_at(hosts.address, hosts.port, limit))
        except dist.DistError:
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


def _until_open(hosts: Hosts, deadline: float, timeout_s: float) -> None:
    # torch would print a warning each time that nothing listens yet
    while True:
        left_s = deadline - time.monotonic()
        try:
            place = hosts.address, hosts.port
            with closing(socket.create_connection(place, max(0.1, left_s))):
                return
        except OSError as error:
            if left_s < POLL_S:
                raise UserError(
                    f"--rdzv-endpoint: {hosts.endpoint}: no answer within "
                    f"{timeout_s:g} s ({error.strerror or error}): the first host does "
                    "not listen there, or a firewall is between"
                ) from None
        time.sleep(POLL_S)
