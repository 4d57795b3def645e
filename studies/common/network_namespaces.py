"""Hosts on one machine: networks of their own, each with a cable to one switch.

A command can run on such a host (:meth:`Host.command`). Or a process stays in the
network of its machine, and only the sockets of a process group are made in that of its
host (:func:`over`): so it can train over loopback now and over a shaped cable a moment
later, and both are measured side by side.

The networks have no name. They are gone with the last process that holds them, and
cables, shaping and switch with them, however that process ends: nothing can be left
behind.

Needs Linux, root, iproute2 and util-linux. A cable is a veth pair, the switch a bridge;
tc-tbf shapes what a host sends, with a bucket of :data:`BURST_BYTES` that passes at
once after a pause. Shaping stands for a slower cable: a longer or a lossy one needs
netem, which not every kernel has.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from minitrain.core.errors import UserError

# as tc writes it: 128 KiB, enough for a packet that the kernel cuts only on its way
BURST = "128kb"
BURST_BYTES = 128 * 1024
# longest time that a packet may wait for the shaper
LATENCY = "50ms"
CABLE, SWITCH = "cable", "switch"
SOCKETS = "GLOO_SOCKET_IFNAME"
# of the networks nobody else knows: no route leads anywhere else
ADDRESS = "10.0.0.{}"
TOOLS = {"ip": "iproute2", "tc": "iproute2"}
TOOLS |= {"nsenter": "util-linux", "setpriv": "util-linux"}
CLONE_NEWNET = 0x40000000
OWN_NETWORK = "/proc/thread-self/ns/net"


def why_not() -> str | None:
    """Why this process cannot make hosts; None where it can, which it tries."""
    if reason := _missing():
        return reason
    try:
        with Networks(1, "1gbit"):
            pass
    except UserError as error:
        return f"needs root with all its rights ({error})"
    return None


def _missing() -> str | None:
    if not Path(OWN_NETWORK).exists():
        return "needs Linux"
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            return f"needs {package} ({tool} is missing)"
    return None if os.geteuid() == 0 else "needs root"


class Host(NamedTuple):
    """One network: ``path`` names it for processes of the same user while that lives
    which made it; ``address`` is that of its cable.
    """

    path: str
    address: str

    def command(self, command: Sequence[str]) -> list[str]:
        """``command`` as it runs on this host; it is told to end (SIGTERM) when the
        process ends that starts it.
        """
        ends = ["setpriv", "--pdeathsig", "TERM", "--"]
        return [*ends, "nsenter", f"--net={self.path}", "--", *command]


class Networks:
    """``count`` hosts, their cables and the switch, as long as the context lasts.

    ``rate`` is what each may send, as tc writes it (``100mbit``); None is as fast as
    the machine is. Raises UserError without what they need, or where the kernel
    refuses.
    """

    def __init__(self, count: int = 2, rate: str | None = None) -> None:
        if reason := _missing():
            raise UserError(f"hosts on one machine: {reason}")
        self._count, self._rate = count, rate
        self._networks: list[int] = []

    def __enter__(self) -> Self:
        try:
            for _ in range(1 + self._count):
                self._networks.append(_new_network())
            self._join()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    @property
    def hosts(self) -> list[Host]:
        """All of them."""
        _, *networks = map(_path_of, self._networks)
        return [
            Host(path, ADDRESS.format(number))
            for number, path in enumerate(networks, 1)
        ]

    @property
    def paths(self) -> tuple[str, ...]:
        """Of the network of each host."""
        return tuple(host.path for host in self.hosts)

    def _join(self) -> None:
        switch = _path_of(self._networks[0])
        with inside(switch):
            _run("ip", "link", "add", "name", SWITCH, "type", "bridge")
            _run("ip", "link", "set", "dev", SWITCH, "up")
        for number, host in enumerate(self.hosts):
            port = f"port{number}"
            with inside(switch):
                cable = ["name", port, "type", "veth", "peer", "name", CABLE]
                _run("ip", "link", "add", *cable, "netns", host.path)
                _run("ip", "link", "set", "dev", port, "master", SWITCH, "up")
            with inside(host.path):
                # gloo would take the address of version 6, too
                _run("ip", "link", "set", "dev", CABLE, "addrgenmode", "none")
                _run("ip", "addr", "add", f"{host.address}/24", "dev", CABLE)
                for device in (CABLE, "lo"):
                    _run("ip", "link", "set", "dev", device, "up")
            if self._rate is not None:
                shape(host.path, self._rate)

    def _close(self) -> None:
        while self._networks:
            os.close(self._networks.pop())


def _path_of(network: int) -> str:
    return f"/proc/{os.getpid()}/fd/{network}"


def shape(path: str, rate: str) -> None:
    """Let the host at ``path`` send at ``rate`` and no faster, such as ``100mbit``."""
    bucket = ["rate", rate, "burst", BURST, "latency", LATENCY]
    with inside(path):
        _run("tc", "qdisc", "replace", "dev", CABLE, "root", "tbf", *bucket)


def host_of(rank: int, world_size: int) -> int:
    """Which host a rank is on: the first half on the first, so that a ring crosses the
    cable once in each direction.
    """
    return int(2 * rank >= world_size)


@contextmanager
def over(path: str) -> Iterator[None]:
    """Process groups that are made within talk over the cable of the host at ``path``:
    gloo's sockets, and its thread that serves them, stay where they were made.
    """
    before = os.environ.get(SOCKETS)
    os.environ[SOCKETS] = CABLE
    try:
        with inside(path):
            yield
    finally:
        del os.environ[SOCKETS]
        if before is not None:
            os.environ[SOCKETS] = before


@contextmanager
def inside(path: str) -> Iterator[None]:
    """This thread, and what it starts, is in the network at ``path``."""
    home = _open(OWN_NETWORK)
    try:
        there = _open(path)
        try:
            _enter(there)
        finally:
            os.close(there)
        try:
            yield
        finally:
            _enter(home)
    finally:
        os.close(home)


def _new_network() -> int:
    """A file descriptor of a new network, which lasts as long as somebody has one."""
    home = _open(OWN_NETWORK)
    try:
        _require(_libc().unshare(CLONE_NEWNET))
        try:
            return _open(OWN_NETWORK)
        finally:
            _enter(home)
    finally:
        os.close(home)


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _enter(network: int) -> None:
    _require(_libc().setns(network, CLONE_NEWNET))


# Python has both from 3.12 on
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _require(result: int) -> None:
    if result:
        reason = os.strerror(ctypes.get_errno())
        raise UserError(f"hosts on one machine: a network of its own: {reason}")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise UserError(
            f"hosts on one machine: `{' '.join(command)}`: "
            f"{said[-1] if said else f'exit code {done.returncode}'}"
        )
