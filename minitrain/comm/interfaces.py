"""Over which interface this host talks: by its name, or by the route to an address."""

import ipaddress
import socket
from typing import NamedTuple

import psutil

from minitrain.core.errors import UserError

KEY = "--interface"


class Interface(NamedTuple):
    """A network interface that is up, and the address that ranks talk over: gloo, which
    is told the name alone, takes the first, IPv4 before IPv6.
    """

    name: str
    address: str

    @property
    def is_loopback(self) -> bool:
        """True if no other host can reach it."""
        return ipaddress.ip_address(self.address).is_loopback


def own_interfaces() -> list[Interface]:
    """Every address of this host, with the interface that has it, in gloo's order."""
    families = (socket.AF_INET, socket.AF_INET6)
    return [
        Interface(name, one.address.partition("%")[0])
        for name, addresses in psutil.net_if_addrs().items()
        for one in addresses
        if one.family in families
    ]


def interface_named(name: str) -> Interface:
    """The interface ``name``, or the address with that label, such as ``eth0:1``.

    Raises UserError if there is none, or it is down, or has no address.
    """
    states, labels = psutil.net_if_stats(), psutil.net_if_addrs()
    if name not in states and name not in labels:
        names = ", ".join(sorted({*states, *labels}))
        raise UserError(f"{KEY} = {name!r}: must be one of {names}")
    # a label is up with the interface that it belongs to
    state = states.get(name.partition(":")[0])
    if state is not None and not state.isup:
        raise UserError(f"{KEY} = {name!r}: is down")
    found = next((one for one in own_interfaces() if one.name == name), None)
    if found is None:
        raise UserError(f"{KEY} = {name!r}: has no address")
    return found


def interface_towards(address: str) -> Interface:
    """The interface over which packets to ``address`` leave this host.

    Raises UserError if there is no route, or ranks would talk over another address
    of the interface than the one that leads there.
    """
    with socket.socket(family_of(address), socket.SOCK_DGRAM) as probe:
        try:
            # of a datagram socket it sends nothing; the kernel picks the route
            probe.connect((address, 9))
        except OSError as error:
            raise UserError(
                f"network: no route to {address}: {error.strerror}; {KEY} names one"
            ) from None
        own = probe.getsockname()[0]
    name = next(one.name for one in own_interfaces() if one.address == own)
    found = interface_named(name)
    if family_of(found.address) == family_of(own) and found.address != own:
        raise UserError(
            f"network: the way to {address} is from {own}, but ranks would talk over "
            f"{found.address}, which comes first on {name}; {KEY} = {name!r} says that "
            "other hosts reach that"
        )
    return found


def family_of(address: str) -> socket.AddressFamily:
    """IPv4 or IPv6."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def is_own(address: str) -> bool:
    """True if ``address`` is one of this host's."""
    return any(one.address == address for one in own_interfaces())


def address_of(host: str) -> str:
    """The address of ``host``, a name or an address; UserError for an unknown name."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UserError(f"--rdzv-endpoint: {host!r}: {error}") from None
    # IPv4 where there is both: gloo takes the first address of an interface
    return str(min(found, key=lambda one: one[0] != socket.AF_INET)[4][0])
