"""The reference of a strategy, which a replay repeats, against a sum.

A reference that forgets a rank, and a strategy that forgets it too, agree in each bit.
"""

from collections.abc import Iterable

import torch

from minitrain.proof.bits import Rung
from minitrain.proof.replay import Hosts, reduction_of
from minitrain.sync.strategy import Strategy

# odd ones beside those of the run: chunks of a ring come out unequal
SIZES = (1, 7, 1000)
# elements, for the memory that many shards of a large model would take
MOST = 1 << 20


def reference_rung(
    strategy: type[Strategy], num_shards: int, sizes: Iterable[int], dtype: torch.dtype
) -> Rung:
    """The reference of a strategy against a float64 sum of random gradients, for
    buckets of ``sizes`` elements, and several ways to put ranks on hosts.

    Adding n numbers rounds at most n times, each time by at most half a unit in the
    last place of the sum of absolute values so far (Higham, Accuracy and Stability of
    Numerical Algorithms, chapter 4); twice that is allowed.
    """
    chance = torch.Generator().manual_seed(0)
    wire = strategy.guarantees.wire
    coarse = getattr(torch, wire) if wire else dtype
    unit, smallest = torch.finfo(coarse).eps, torch.finfo(coarse).smallest_normal
    worst, where = 0.0, ""
    for size in sorted({*SIZES, *(min(size, MOST) for size in sizes)}):
        drawn = (torch.randn(size, generator=chance) for _ in range(num_shards))
        shards = [one.to(dtype) for one in drawn]
        right = torch.stack(shards).double()
        allowed = (num_shards + 1) * (unit * right.abs().sum(0) + smallest)
        for hosts in possible_hosts(strategy, num_shards):
            found = reduction_of(strategy, hosts)([shard.clone() for shard in shards])
            share = float(((found.double() - right.sum(0)).abs() / allowed).max())
            if not share <= worst:
                worst, where = share, f"{num_shards} shards of {size} elements"
                where += f" on {len(hosts)} hosts" if len(hosts) > 1 else ""
    if not worst <= 1:
        detail = f"{where}: {worst:.3g} times what rounding explains"
        return Rung(None, None, None, "breach", f"the reference is no sum: {detail}")
    detail = f"at most {worst:.2g} of what rounding may do"
    return Rung(None, None, None, "within tolerance", detail)


def possible_hosts(strategy: type[Strategy], num_shards: int) -> list[Hosts]:
    """Return some of the ways in which ranks may lie on hosts: on one, on two and on
    three of unequal size, and each on its own; one way where none makes a difference.
    """
    ranks = range(num_shards)
    counts = {1, 2, 3, num_shards} if strategy.guarantees.adds_in == "hosts" else {1}
    return [
        [[*ranks[first::count]] for first in range(count)]
        for count in sorted(counts)
        if count <= num_shards
    ]
