"""Simulated hosts: network namespaces, each connected by a cable to one switch.

A command can run on such a host (:meth:`Host.command`). Alternatively a process stays
in the namespace of the machine, and only the sockets of a process group are created in
a host's namespace (:func:`over`): it can train over loopback and over a shaped cable in
turn, for an interleaved comparison.

The namespaces are anonymous. They disappear with the last process that holds them,
together with cables, shaping and switch, so nothing is left behind.

Requires Linux, root, iproute2 and util-linux. A cable is a veth pair, the switch a
bridge; tc-tbf shapes the traffic sent by a host, with a bucket of :data:`BURST_BYTES`
after a pause. Shaping simulates a slower cable; latency or loss would need netem, which
not every kernel has.
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

# in tc's format: 128 KiB, enough for a packet before segmentation offload
BURST = "128kb"
BURST_BYTES = 128 * 1024
# maximum delay of a packet in the shaper
LATENCY = "50ms"
CABLE, SWITCH = "cable", "switch"
SOCKETS = "GLOO_SOCKET_IFNAME"
# addresses within the namespaces only, without a route to the outside
ADDRESS = "10.0.0.{}"
TOOLS = {"ip": "iproute2", "tc": "iproute2"}
TOOLS |= {"nsenter": "util-linux", "setpriv": "util-linux"}
CLONE_NEWNET = 0x40000000
OWN_NETWORK = "/proc/thread-self/ns/net"


def why_not() -> str | None:
    """Return why this process cannot create namespaces, by trying; None if it can."""
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
    """Simulated host: ``path`` names its namespace for processes of the same user while
    its creator runs; ``address`` is the address of its cable.
    """

    path: str
    address: str

    def command(self, command: Sequence[str]) -> list[str]:
        """Return ``command`` wrapped to run on this host; it gets SIGTERM when its
        parent exits.
        """
        ends = ["setpriv", "--pdeathsig", "TERM", "--"]
        return [*ends, "nsenter", f"--net={self.path}", "--", *command]


class Networks:
    """Create ``count`` hosts with cables and a switch, for the duration of the context.

    ``rate`` limits what each host sends, in tc's format (``100mbit``); None for no
    limit. Raises UserError if a requirement is missing or the kernel refuses.
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
        """All hosts."""
        _, *networks = map(_path_of, self._networks)
        return [
            Host(path, ADDRESS.format(number))
            for number, path in enumerate(networks, 1)
        ]

    @property
    def paths(self) -> tuple[str, ...]:
        """Path of each host's namespace."""
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
                # gloo could choose the IPv6 address
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
    """Limit what the host at ``path`` sends to ``rate``, such as ``100mbit``."""
    bucket = ["rate", rate, "burst", BURST, "latency", LATENCY]
    with inside(path):
        _run("tc", "qdisc", "replace", "dev", CABLE, "root", "tbf", *bucket)


def host_of(rank: int, world_size: int) -> int:
    """Return the host of a rank: the first half is on the first host, so that a ring
    crosses the cable once per direction.
    """
    return int(2 * rank >= world_size)


@contextmanager
def over(path: str) -> Iterator[None]:
    """Create process groups within this context over the cable of the host at ``path``:
    gloo's sockets and its serving thread stay in the namespace of their creation.
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
    """Move this thread, and threads it starts, to the namespace at ``path``."""
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
    """Return a file descriptor of a new namespace, which exists while it is open."""
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


# available in os from Python 3.12
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
