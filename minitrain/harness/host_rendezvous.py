"""Hosts come together before anything is started on them, and tell each other why a
run failed.
"""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist

from minitrain.comm.interfaces import family_of
from minitrain.comm.store import store_at
from minitrain.comm.torch_private import PrefixStore, Store, open_exit_barrier
from minitrain.core.errors import UserError, describe_os_error
from minitrain.harness.host_failures import as_plain, from_plain, order, with_silent
from minitrain.harness.host_reports import Told, hear, read
from minitrain.harness.host_store import POLL_S, find, no_run, serve
from minitrain.harness.hosts import Hosts
from minitrain.harness.rendezvous import Agents

GAVE_UP, SAME = "gave up", "same"
# to the address of a host that is there
REACH_S = 5.0
# for other hosts to say why their ranks ended: a rank that is told to end has 3
TOLD_S = 10.0
# the first host keeps the store until the others have left
LEAVE_S = 5.0


class Known(NamedTuple):
    """What the hosts know of each other; ``port`` is open until all have tried it."""

    number: int
    name: str
    address: str
    port: int

    def __str__(self) -> str:
        return f"host {self.number} ({self.name}, {self.address})"


class Gathering:
    """The hosts of a run, all of them there and able to reach each other."""

    def __init__(
        self, hosts: Hosts, store: Store, timeout_s: float, world_size: int
    ) -> None:
        self.hosts, self.store, self.timeout_s = hosts, store, timeout_s
        # what is typed on each host
        self._same = {"--nnodes": hosts.count, "--world-size": world_size}
        self.everyone: list[Known] = []
        self.number: int | None = None
        self.attempt = 0
        self._ear = store
        # what was heard, whatever becomes of the store
        self._told: Told = {}
        self._lost_first = False

    @property
    def _others(self) -> list[Known]:
        return self.everyone[1:]

    @property
    def _reach_s(self) -> float:
        # before the others give up waiting for what came of it
        return min(REACH_S, self.timeout_s / 2)

    def begin_attempt(self) -> Agents:
        """What the torchruns of the next attempt share, on all hosts.

        Raises UserError where a host has left.
        """
        for other in self._others:
            if self._has(_left(other.number)):
                raise UserError(f"{other} has left the run")
        self.attempt += 1
        name = f"attempt-{self.attempt}"
        store = PrefixStore(f"torchrun {name}", self.store)
        # how ranks ended is agreed on here, and whoever failed late is heard of
        open_exit_barrier(store)
        return Agents(store, self.everyone[0].number, self.hosts.count, name)

    def everywhere(self, action: Callable[[], None]) -> None:
        """Call ``action`` on all hosts; a UserError of one is raised on all of them."""
        mistake: Exception | None = None
        try:
            action()
        except UserError as error:
            mistake = error
        except OSError as error:
            mistake = UserError(describe_os_error(error))
        limit_s = self.timeout_s
        if cause := self._exchange("preflight", mistake, limit_s, limit_s):
            raise cause

    def agree_on(self, error: Exception | None) -> Exception | None:
        """Of what made each host's ranks end, the cause: ``error`` is what did here, or
        None where they ended well, as it is where they did so everywhere.

        Every host that answers gets the same; one that does not is named.
        """
        # ranks that go on elsewhere may write, then end: there, too, each has a limit
        going_on_s = 0 if error else 2 * self.timeout_s
        what = f"attempt {self.attempt}"
        return self._exchange(what, error, going_on_s + TOLD_S, TOLD_S)

    def ended_elsewhere(self) -> bool:
        """Whether another host has told what ended its ranks in this attempt, or the
        first is lost.
        """
        keys = [f"attempt {self.attempt} {other.number}" for other in self._others]
        try:
            return read(self._ear, keys, self._told)
        except dist.DistError:
            self._lost_first = True
            return True

    def _exchange(
        self, what: str, error: Exception | None, within_s: float, after_error_s: float
    ) -> Exception | None:
        """Tell the others of ``error``, or that there is none -> the first cause."""
        mine = self.everyone[0]
        with suppress(dist.DistError):
            self.store.set(f"{what} {mine.number}", json.dumps(as_plain(error)))
        names = {f"{what} {other.number}": str(other) for other in self._others}
        # whoever else asks may find the first lost after all was heard here
        lost = self._lost_first
        try:
            # an answer that comes late would be taken for that to the next question
            if not lost:
                hear(self.store, names, self._told, within_s, after_error_s)
        except dist.DistError:
            lost = self._lost_first = True
        found, silent = {mine.number: error}, []
        for other, key in zip(self._others, names, strict=True):
            if key not in self._told:
                silent.append(str(other))
                continue
            told = from_plain(self._told[key])
            if isinstance(told, UserError) and str(told) != str(error):
                told = UserError(f"{other}: {told}")
            found[other.number] = told
        causes = [(order(one), number) for number, one in found.items() if one]
        cause = found[min(causes)[1]] if causes else None
        # with the first went what the others would have told
        return with_silent(cause, silent[:1] if lost else silent)

    def _has(self, key: str) -> bool:
        try:
            return bool(self.store.check([key]))
        except dist.DistError:
            raise UserError(f"{self.hosts.endpoint}: the first host has gone") from None

    def meet(self) -> None:
        """Wait for all hosts, and see that each can reach the others."""
        limit = timedelta(seconds=self.timeout_s)
        # of its own: who asks in vain for long keeps nobody else from asking
        self._ear = store_at(self.hosts.address, self.hosts.port, limit)
        host = self.hosts.interface.address
        # gloo's own address, which may be of another family than the endpoint
        with socket.create_server((host, 0), family=family_of(host)) as door:
            port = int(door.getsockname()[1])
            number = self._own_number()
            mine = Known(number, socket.gethostname(), host, port)
            self._compare(mine)
            self._sit(number)
            self.store.set(_seat_of(number), json.dumps(mine))
            self.number = number
            self.everyone = [mine, *self._wait_for_others(number)]
            told = sorted(_reached(one.number) for one in self.everyone)
            self.store.set(_reached(number), self._cannot_reach())
            self.store.wait(told, limit)
        lines = [self.store.get(key).decode() for key in told]
        if failed := list(filter(None, lines)):
            raise UserError(failed[0])

    def _own_number(self) -> int:
        """The number of this host: as it was told, 0 for the first, or as they come."""
        number = self.hosts.number
        if number is None:
            number = 0 if self.hosts.is_first else self.store.add("came", 1)
        return number

    def _compare(self, mine: Known) -> None:
        """Raise UserError, here and on the hosts that wait, where the first host was
        told another size of the run.
        """
        if self.hosts.is_first:
            self.store.set(SAME, json.dumps([str(mine), self._same]))
            return
        try:
            first, there = json.loads(self.store.get(SAME))
        except dist.DistError:
            # a store, as of another torchrun
            raise no_run(self.hosts) from None
        for option, value in self._same.items():
            if value != there[option]:
                line = f"{option} = {value} on {mine}, but {there[option]} on {first}"
                self.store.set(GAVE_UP, line)
                raise UserError(line)

    def _sit(self, number: int) -> None:
        hosts = self.hosts
        if number >= hosts.count or self.store.add(f"sits {number}", 1) > 1:
            raise UserError(
                f"{hosts.endpoint}: all {hosts.count} hosts of the run are there, and "
                "this is one more"
            )

    def _wait_for_others(self, own: int) -> list[Known]:
        missing = [n for n in range(self.hosts.count) if n != own]
        others: list[Known] = []
        deadline = time.monotonic() + self.timeout_s
        while missing:
            others += [self._known(n) for n in missing if self._has(_seat_of(n))]
            missing = [n for n in missing if n not in {one.number for one in others}]
            # by whoever has waited longest
            if self._has(GAVE_UP):
                raise UserError(self.store.get(GAVE_UP).decode())
            if missing and time.monotonic() > deadline:
                self.store.set(GAVE_UP, self._gave_up([*others, self._known(own)]))
            elif missing:
                time.sleep(POLL_S)
        return sorted(others)

    def _gave_up(self, came: list[Known]) -> str:
        names = ", ".join(map(str, sorted(came)))
        waited = f"waited {self.timeout_s:g} s for {self.hosts.count} hosts"
        return f"{self.hosts.endpoint}: {waited}: only {names} came"

    def _known(self, number: int) -> Known:
        return Known(*json.loads(self.store.get(_seat_of(number))))

    def _cannot_reach(self) -> str:
        """Which host this one does not reach, in a line; empty where it reaches all."""
        mine, *others = self.everyone
        for other in others:
            try:
                there = other.address, other.port
                socket.create_connection(there, self._reach_s).close()
            except OSError as error:
                interface = self.hosts.interface.name
                return (
                    f"network: {mine} does not reach {other} by its interface "
                    f"{interface}: {error.strerror or error}; --interface names "
                    "another, and a firewall must let the hosts through to each other"
                )
        return ""

    def leave(self) -> None:
        """Say so, and as the first host wait for the others to have left."""
        if self.number is None:
            return
        numbers = [n for n in range(self.hosts.count) if n != self.number]
        with suppress(dist.DistError, UserError):
            self.store.set(_left(self.number), "")
            if self.hosts.is_first:
                came = [n for n in numbers if self._has(_seat_of(n))]
                keys = [_left(number) for number in came]
                self.store.wait(keys, timedelta(seconds=LEAVE_S))


@contextmanager
def gathered(hosts: Hosts, timeout_s: float, world_size: int) -> Iterator[Gathering]:
    """All ``hosts``, as soon as they are there; it waits ``timeout_s`` at most.

    Raises UserError where a host does not come, was told that the run has other than
    ``world_size`` ranks, or does not reach another.
    """
    store = serve(hosts, timeout_s) if hosts.is_first else find(hosts, timeout_s)
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


def _seat_of(number: int) -> str:
    return f"host {number}"


def _reached(number: int) -> str:
    return f"reached {number:05}"


def _left(number: int) -> str:
    return f"left {number}"
