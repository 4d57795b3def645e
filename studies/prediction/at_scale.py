"""Cost model at scale: thousands of ranks on named networks.

Nothing here was measured on such a network. :data:`ASSUMPTIONS` lists the assumptions,
which a plot must show.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from gpt_layers import buckets, features, gpt_layers
from link_model import Line, Link, ring_bytes, ring_messages

ASSUMPTIONS = (
    "ranks are alike, one accelerator each, and never wait for data or for each other",
    "each rank computes the same batch whatever their number (weak scaling)",
    "nothing disturbs a message, and switches carry all hosts at full rate",
    "the ranks of a host share one network card, and send to the next host in turn",
    "a bucket is sent when backward has it; communication takes nothing from computing",
    "float32 gradients in buckets of the stated size, one all-reduce at a time",
)
# share of forward in computation, with the usual 2 backward flops per forward flop
FORWARD_SHARE = 1 / 3


@dataclass(frozen=True)
class Workload:
    """Work of each rank in a step: a GPT with ``samples`` sequences, at ``flops_per_s``
    of the accelerator.
    """

    n_layer: int
    n_embd: int
    block_size: int
    vocab_size: int
    samples: int
    flops_per_s: float
    bucket_cap_mb: float | None = None


@dataclass(frozen=True)
class Cluster:
    """Cluster of ``ranks`` on hosts of ``per_host`` ranks; ``inside`` connects the
    ranks of a host, ``outside`` the hosts.
    """

    ranks: int
    per_host: int
    inside: Link
    outside: Link

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return -(-self.ranks // self.per_host)


def flat_ring_s(num_bytes: float, cluster: Cluster) -> float:
    """Return the seconds of one ring through all ranks, host by host. Its slowest link
    determines the speed: with several hosts each message takes the link outside.
    """
    if cluster.hosts == 1:
        return cluster.inside.seconds(num_bytes, cluster.ranks)
    inside, outside = cluster.inside.line(num_bytes), cluster.outside.line(num_bytes)
    slowest = Line(
        0.0, max(inside.alpha, outside.alpha), max(inside.beta, outside.beta)
    )
    return Link((slowest,)).seconds(num_bytes, cluster.ranks)


def hierarchical_s(num_bytes: float, cluster: Cluster) -> float:
    """Return the seconds of three phases: reduce-scatter within each host, rings across
    hosts for each rank's slice, all-gather within each host.

    The two inner phases cost one all-reduce within the host; the rings share the
    network card of a host, so they cost one ring of all bytes.
    """
    within = min(cluster.ranks, cluster.per_host)
    inside = cluster.inside.seconds(num_bytes, within)
    return inside + cluster.outside.seconds(num_bytes, cluster.hosts)


def efficiency(work: Workload, cluster: Cluster, hierarchical: bool) -> float:
    """Return the fraction of a step spent on computation: the speed of
    ``cluster.ranks`` ranks relative to as many that do not communicate.
    """
    layers = gpt_layers(work.n_layer, work.n_embd, work.block_size, work.vocab_size)
    flops = features(layers, work.samples * work.block_size)[:, 0]
    forward = float(flops.sum()) / work.flops_per_s
    done = np.cumsum(flops) / work.flops_per_s * (1 / FORWARD_SHARE - 1)
    free = 0.0
    for bucket in buckets(layers, work.bucket_cap_mb):
        reduce_s = hierarchical_s if hierarchical else flat_ring_s
        start = max(free, float(done[bucket.after]))
        free = start + reduce_s(bucket.num_bytes, cluster)
    computing = forward + float(done[-1])
    return computing / (computing + max(0.0, free - float(done[-1])))


def efficiencies(
    work: Workload,
    ranks: Sequence[int],
    per_host: int,
    inside: Link,
    outside: Link,
    hierarchical: bool,
) -> list[float]:
    """Return the :func:`efficiency` for each number of ``ranks`` on these links."""
    clusters = [Cluster(count, per_host, inside, outside) for count in ranks]
    return [efficiency(work, cluster, hierarchical) for cluster in clusters]


def latency_share(num_bytes: float, link: Link, ranks: int) -> float:
    """Return the fraction of a ring's time that is latency."""
    line = link.line(num_bytes)
    messages = ring_messages(ranks) * line.alpha
    return messages / (messages + ring_bytes(num_bytes, ranks) * line.beta)


def smallest_useful_bucket(link: Link, ranks: int) -> float:
    """Return the bytes of an all-reduce whose latency equals its transfer time: smaller
    buckets are latency bound. It grows with the number of ranks.
    """
    line = link.lines[-1]
    return ranks * line.alpha / line.beta


def world_sizes(smallest: int, largest: int) -> Sequence[int]:
    """Return the powers of two from ``smallest`` (a power of two) to ``largest``."""
    found = [smallest]
    while 2 * found[-1] <= largest:
        found.append(2 * found[-1])
    return found
