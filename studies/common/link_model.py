"""How long an all-reduce takes on a link: seconds a message, and seconds a byte.

A ring of n ranks sums S bytes in 2 (n - 1) messages, each of S / n bytes, so it takes
``2 (n - 1) alpha + 2 (n - 1) / n S beta`` seconds (Thakur, Rabenseifner and Gropp,
Optimization of Collective Communication Operations in MPICH, 2005). At n = 2 that is
``2 alpha + S beta``. What is assumed:

- The links of a ring are alike and carry both directions at once.
- gloo cuts a message into segments of up to 1 MiB and sends one while it adds another,
  so alpha is what is left of all their latencies, and beta holds the additions.
- Over loopback the link is the processor, so alpha and beta are of a machine that does
  nothing else, and grow where ranks wait for a core (:meth:`Link.crowded`).
- Small and large messages may lie on two lines: on loopback more segments, and buffers
  that leave the cache. Two are taken only where one is not enough (:func:`fit_link`).
- A shaper (a token bucket: tc-tbf) lets ``burst_bytes`` pass at once after a pause.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from link_rate import LOOPBACK, bytes_per_s

from minitrain.core.errors import UserError


@dataclass(frozen=True)
class Line:
    """``alpha`` seconds a message and ``beta`` seconds a byte, for all-reduces of
    ``from_bytes`` and more.
    """

    from_bytes: float
    alpha: float
    beta: float


@dataclass(frozen=True)
class Link:
    """What one rank sends through: lines by ascending ``from_bytes``, of which the
    first begins at 0.
    """

    lines: tuple[Line, ...]
    burst_bytes: float = 0.0

    @classmethod
    def of(cls, alpha: float, beta: float) -> "Link":
        """One line for all sizes: seconds a message, seconds a byte."""
        return cls((Line(0.0, alpha, beta),))

    def line(self, num_bytes: float) -> Line:
        """The line on which an all-reduce of ``num_bytes`` lies."""
        return [one for one in self.lines if one.from_bytes <= num_bytes][-1]

    def seconds(
        self, num_bytes: float, world_size: int, idle_s: float = math.inf
    ) -> float:
        """Seconds of an all-reduce of ``num_bytes`` over ``world_size`` ranks, when the
        link has been idle for ``idle_s``; 0 for one rank.
        """
        if world_size == 1:
            return 0.0
        line = self.line(num_bytes)
        sent = ring_bytes(num_bytes, world_size)
        # the bucket of tokens fills at the rate of the link
        credit = min(self.burst_bytes, idle_s / line.beta) if line.beta else 0.0
        wire = max(0.0, sent - credit) * line.beta
        return ring_messages(world_size) * line.alpha + wire

    def crowded(self, alpha: float, beta: float) -> "Link":
        """The same with every alpha and beta multiplied by these."""
        lines = tuple(
            Line(one.from_bytes, one.alpha * alpha, one.beta * beta)
            for one in self.lines
        )
        return replace(self, lines=lines)


@dataclass(frozen=True)
class Shaped:
    """Links that differ in their rate alone, joined by what they have in common.

    ``alpha``: seconds a message takes besides its way over the wire; ``frame_bytes``:
    what a message without payload occupies there; ``overhead``: bytes on the wire for
    one of payload (headers); ``burst_bytes``: see :class:`Link`.
    """

    alpha: float
    frame_bytes: float
    overhead: float
    burst_bytes: float

    def at(self, rate: float, floor: Link | None = None) -> Link:
        """The link at ``rate`` bytes a second. No byte is faster than on ``floor``, on
        which the processor is all that limits.
        """
        beta = self.overhead / rate
        least = floor.lines[-1].beta if floor else 0.0
        alpha = self.alpha + self.frame_bytes / rate
        if least >= beta:
            return Link.of(alpha, least)
        return replace(Link.of(alpha, beta), burst_bytes=self.burst_bytes)


@dataclass(frozen=True)
class Network:
    """The links that were measured: loopback, and cables, if there were any."""

    loopback: Link
    cable: Shaped | None = None

    def link(self, name: str) -> Link:
        """``loopback``, or the cable of a rate such as ``100mbit``; UserError where no
        cable was measured.
        """
        if name == LOOPBACK:
            return self.loopback
        rate = bytes_per_s(name)
        if self.cable is None:
            raise UserError(f"link = {name!r}: no cable was measured, only {LOOPBACK}")
        return self.cable.at(rate, self.loopback)


def network_of(found: Mapping[str, Any]) -> Network:
    """The network whose fields, as ``dataclasses.asdict`` gives them, are ``found``."""
    lines = tuple(Line(**line) for line in found["loopback"]["lines"])
    cable = found["cable"] and Shaped(**found["cable"])
    return Network(Link(lines), cable)


def ring_messages(world_size: int) -> int:
    """Messages that each rank sends in an all-reduce, one after the other."""
    return 2 * (world_size - 1)


def ring_bytes(num_bytes: float, world_size: int) -> float:
    """Bytes that each rank sends in an all-reduce of ``num_bytes``."""
    return 2 * (world_size - 1) / world_size * num_bytes
