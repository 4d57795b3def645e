"""Latency-bandwidth model of an all-reduce: seconds per message and per byte.

A ring of n ranks sums S bytes in 2 (n - 1) messages of S / n bytes each, so it takes
``2 (n - 1) alpha + 2 (n - 1) / n S beta`` seconds (Thakur, Rabenseifner and Gropp,
Optimization of Collective Communication Operations in MPICH, 2005). At n = 2 that is
``2 alpha + S beta``. Assumptions:

- The links of a ring are identical and full duplex.
- gloo splits a message into segments of up to 1 MiB and sends one while it adds
  another: alpha is the remaining latency, and beta includes the additions.
- Over loopback the link is the CPU: alpha and beta hold for an idle machine, and grow
  when ranks wait for a core (:meth:`Link.crowded`).
- Small and large messages may follow two lines: on loopback, large ones take more
  segments and buffers outside the cache. Two are fitted only if needed
  (:func:`fit_link`).
- A shaper (token bucket, tc-tbf) passes ``burst_bytes`` at full speed after a pause.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from link_rate import LOOPBACK, bytes_per_s

from minitrain.core.errors import UserError


@dataclass(frozen=True)
class Line:
    """Cost of all-reduces of ``from_bytes`` and more: ``alpha`` seconds per message and
    ``beta`` seconds per byte.
    """

    from_bytes: float
    alpha: float
    beta: float


@dataclass(frozen=True)
class Link:
    """Link of one rank: lines by ascending ``from_bytes``, starting at 0."""

    lines: tuple[Line, ...]
    burst_bytes: float = 0.0

    @classmethod
    def of(cls, alpha: float, beta: float) -> "Link":
        """Return a link with one line for all sizes."""
        return cls((Line(0.0, alpha, beta),))

    def line(self, num_bytes: float) -> Line:
        """Return the line for an all-reduce of ``num_bytes``."""
        return [one for one in self.lines if one.from_bytes <= num_bytes][-1]

    def seconds(
        self, num_bytes: float, world_size: int, idle_s: float = math.inf
    ) -> float:
        """Return the seconds of an all-reduce of ``num_bytes`` over ``world_size``
        ranks after the link was idle for ``idle_s``; 0 for one rank.
        """
        if world_size == 1:
            return 0.0
        line = self.line(num_bytes)
        sent = ring_bytes(num_bytes, world_size)
        # the token bucket fills at the rate of the link
        credit = min(self.burst_bytes, idle_s / line.beta) if line.beta else 0.0
        wire = max(0.0, sent - credit) * line.beta
        return ring_messages(world_size) * line.alpha + wire

    def crowded(self, alpha: float, beta: float) -> "Link":
        """Return the link with every alpha and beta multiplied by these factors."""
        lines = tuple(
            Line(one.from_bytes, one.alpha * alpha, one.beta * beta)
            for one in self.lines
        )
        return replace(self, lines=lines)


@dataclass(frozen=True)
class Shaped:
    """Common parameters of links that differ only in their rate.

    ``alpha``: seconds per message in addition to transmission; ``frame_bytes``: bytes
    on the wire of an empty message; ``overhead``: bytes on the wire per byte of payload
    (headers); ``burst_bytes``: see :class:`Link`.
    """

    alpha: float
    frame_bytes: float
    overhead: float
    burst_bytes: float

    def at(self, rate: float, floor: Link | None = None) -> Link:
        """Return the link at ``rate`` bytes per second. It is never faster per byte
        than ``floor``, a link limited by the CPU.
        """
        beta = self.overhead / rate
        least = floor.lines[-1].beta if floor else 0.0
        alpha = self.alpha + self.frame_bytes / rate
        if least >= beta:
            return Link.of(alpha, least)
        return replace(Link.of(alpha, beta), burst_bytes=self.burst_bytes)


@dataclass(frozen=True)
class Network:
    """Measured links: loopback, and cables if any."""

    loopback: Link
    cable: Shaped | None = None

    def link(self, name: str) -> Link:
        """Return ``loopback``, or the cable of a rate such as ``100mbit``; raises
        UserError if no cable was measured.
        """
        if name == LOOPBACK:
            return self.loopback
        rate = bytes_per_s(name)
        if self.cable is None:
            raise UserError(f"link = {name!r}: no cable was measured, only {LOOPBACK}")
        return self.cable.at(rate, self.loopback)


def network_of(found: Mapping[str, Any]) -> Network:
    """Return the network with the fields of ``dataclasses.asdict`` in ``found``."""
    lines = tuple(Line(**line) for line in found["loopback"]["lines"])
    cable = found["cable"] and Shaped(**found["cable"])
    return Network(Link(lines), cable)


def ring_messages(world_size: int) -> int:
    """Return the number of sequential messages per rank in an all-reduce."""
    return 2 * (world_size - 1)


def ring_bytes(num_bytes: float, world_size: int) -> float:
    """Return the bytes that each rank sends in an all-reduce of ``num_bytes``."""
    return 2 * (world_size - 1) / world_size * num_bytes
