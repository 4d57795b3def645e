"""Which ranks shared a host, where the order of a sum depends on that."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from minitrain.core.errors import EvidenceError
from minitrain.proof.first_difference import Rows, of_kind
from minitrain.sync.strategy import Strategy

Reduction = Callable[[Sequence[Tensor]], Tensor]
# the ranks on each
Hosts = list[list[int]]


def hosts_of_run(rows: Rows, world_size: int) -> Hosts:
    """The ranks on each host, from a run's hash rows; all on one where it shows none.
    Raises EvidenceError where its ranks do not agree, or a rank is on no host or two.
    """
    one = [[*range(world_size)]]
    recorded = [row.get("hosts", one) for row in of_kind(rows, "buckets")]
    hosts: Hosts = recorded[0] if recorded else one
    for other in recorded:
        if other != hosts:
            raise EvidenceError(f"buckets: hosts = {hosts} on a rank, then {other}")
    if sorted(rank for host in hosts for rank in host) != one[0]:
        must = f"must hold each of {world_size} ranks once"
        raise EvidenceError(f"buckets: hosts = {hosts}: {must}")
    return hosts


def reduction_of(strategy: type[Strategy], hosts: Hosts) -> Reduction:
    """What becomes of one bucket of all shards; ``hosts`` are the ranks on each, for a
    strategy whose order depends on that.
    """
    reference: Any = strategy.reference
    by_host = strategy.guarantees.adds_in == "hosts"
    return partial(reference, hosts=hosts) if by_host else reference


def possible_hosts(strategy: type[Strategy], num_shards: int) -> list[Hosts]:
    """Some of the ways in which ranks may lie on hosts: on one, on two and on three of
    unequal size, and each on its own. One way is enough where none makes a difference.
    """
    ranks = range(num_shards)
    counts = {1, 2, 3, num_shards} if strategy.guarantees.adds_in == "hosts" else {1}
    return [
        [[*ranks[first::count]] for first in range(count)]
        for count in sorted(counts)
        if count <= num_shards
    ]
