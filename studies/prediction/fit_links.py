"""Fit of link coefficients to measured all-reduces, without other inputs.

On loopback with 2 processes on a machine with 2 cores, one line from 4 B to 256 MiB is
104 % off at the worst size; from 1 MiB on it is 12 % off, with three times the latency
of small ones. So a second line is allowed if it more than halves the error
(docs/cost-model.md).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from least_squares import Array, nonnegative
from link_model import (
    Line,
    Link,
    Network,
    Shaped,
    ring_bytes,
    ring_messages,
)
from link_rate import LOOPBACK, bytes_per_s

from minitrain.core.errors import UserError

# minimum number of distinct sizes for each line
MIN_SIZES = 3
# two lines are used if their error (root mean square) is below this fraction of one
# line's
TWO_LINES_PAY = 0.5


class Reduction(NamedTuple):
    """Seconds of an all-reduce of ``num_bytes`` over ``world_size`` ranks on a named
    link.
    """

    link: str
    world_size: int
    num_bytes: float
    seconds: float


def fit_network(
    reductions: Sequence[Reduction], cores: int, burst_bytes: float
) -> tuple[Network, tuple[float, float]]:
    """Fit the links to ``reductions``, and the growth of loopback's alpha and beta for
    every rank per core above one, over ``cores``.

    ``burst_bytes`` is the setting of the cables' shaper. Raises UserError if there are
    no all-reduces over loopback with a core for each rank.
    """
    at_ease = [r for r in reductions if r.world_size <= cores]
    loopback = [r for r in at_ease if r.link == LOOPBACK]
    if not loopback:
        raise UserError(
            f"cost model: needs all-reduces over {LOOPBACK} of at most {cores} ranks"
        )
    link = fit_link(*_columns(loopback))
    cables = [r for r in at_ease if r.link != LOOPBACK]
    cable = None
    if cables:
        rates = [bytes_per_s(r.link) for r in cables]
        cable = fit_shaped(rates, *_columns(cables), burst_bytes)
    crowded = [r for r in reductions if r.link == LOOPBACK and r.world_size > cores]
    factors = fit_crowding(link, crowded, cores) if crowded else (1.0, 1.0)
    return Network(link, cable), factors


def _columns(
    reductions: Sequence[Reduction],
) -> tuple[list[float], list[float], list[int]]:
    return (
        [r.num_bytes for r in reductions],
        [r.seconds for r in reductions],
        [r.world_size for r in reductions],
    )


def fit_link(
    num_bytes: Sequence[float], seconds: Sequence[float], world_sizes: Sequence[int]
) -> Link:
    """Fit a link to all-reduces of ``num_bytes`` over ``world_sizes`` ranks in
    ``seconds``: least squares of relative errors with one line, or with two if their
    error is less than half of it.
    """
    sizes = np.asarray(num_bytes, np.float64)
    times = np.asarray(seconds, np.float64)
    ranks = np.asarray(world_sizes, np.float64)
    best = one = _lines([0.0], sizes, times, ranks)
    distinct = sorted({*sizes})
    for first in distinct[MIN_SIZES : len(distinct) - MIN_SIZES + 1]:
        two = _lines([0.0, first], sizes, times, ranks)
        if two[0] < min(best[0], TWO_LINES_PAY * one[0]):
            best = two
    return Link(best[1])


def _lines(
    begins: list[float], sizes: Array, times: Array, ranks: Array
) -> tuple[float, tuple[Line, ...]]:
    """Return lines that start at these sizes, and their relative RMS error."""
    lines, squares = [], 0.0
    for begin, end in zip(begins, [*begins[1:], math.inf], strict=True):
        mine = (sizes >= begin) & (sizes < end)
        n, s, t = ranks[mine], sizes[mine], times[mine]
        features = np.stack([2 * (n - 1), 2 * (n - 1) / n * s], axis=1)
        alpha, beta = nonnegative(features, t)
        lines.append(Line(begin, float(alpha), float(beta)))
        squares += float(((features @ [alpha, beta] / t - 1) ** 2).sum())
    return math.sqrt(squares / len(sizes)), tuple(lines)


def fit_shaped(
    rates: Sequence[float],
    num_bytes: Sequence[float],
    seconds: Sequence[float],
    world_sizes: Sequence[int],
    burst_bytes: float,
) -> Shaped:
    """Fit the common parameters of shaped links of ``rates`` (bytes per second) to
    all-reduces as in :func:`fit_link`. ``burst_bytes`` is the shaper's setting.
    """
    rate = np.asarray(rates, np.float64)
    n = np.asarray(world_sizes, np.float64)
    sent = 2 * (n - 1) / n * np.asarray(num_bytes, np.float64)
    messages = 2 * (n - 1)
    on_wire = np.maximum(0.0, sent - burst_bytes)
    features = np.stack([messages, messages / rate, on_wire / rate], axis=1)
    alpha, frame, overhead = map(float, nonnegative(features, seconds))
    return Shaped(alpha, frame, overhead, burst_bytes)


def fit_crowding(
    link: Link, reductions: Sequence[Reduction], cores: int
) -> tuple[float, float]:
    """Return the factors, at least 1, of alpha and beta of ``link`` for one more rank
    per core, from ``reductions`` with more ranks than ``cores``.
    """
    features = []
    for _, ranks, size, _ in reductions:
        line, excess = link.line(size), ranks / cores - 1
        messages = ring_messages(ranks) * line.alpha
        sent = ring_bytes(size, ranks) * line.beta
        features.append([messages, messages * excess, sent, sent * excess])
    seconds = np.array([r.seconds for r in reductions])
    known = np.array([[f[0] + f[2]] for f in features])[:, 0]
    more = np.array([[f[1], f[3]] for f in features])
    alpha, beta = nonnegative(more, seconds - known, seconds)
    return 1 + float(alpha), 1 + float(beta)
