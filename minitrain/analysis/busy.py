"""Whether a machine was quiet enough while arms were compared on it.

What others take disturbs arms unequally, so that no noise floor shows it: a comparison
that was made meanwhile judges nothing.
"""

from collections.abc import Mapping
from typing import Any

# share of the cores' time that others may take, the hypervisor included
MAX_TAKEN = 0.10
# p95 / p5 - 1 of an arm's rounds, median over the arms
MAX_SPREAD = 0.50


def why_busy(load: Mapping[str, Any] | None, spread: float) -> str | None:
    """Why a comparison judges nothing, as a clause; None on a machine quiet enough.

    ``load`` is that of :func:`minitrain.bench.load.load_of`, as far as it is known;
    ``spread`` how far the rounds of an arm lie apart.
    """
    shares = [(load or {}).get(key) for key in ("others_share", "steal_share")]
    taken = sum(share for share in shares if share is not None)
    if taken > MAX_TAKEN:
        return f"others took {100 * taken:.0f} % of its cores"
    if spread > MAX_SPREAD:
        return f"rounds of the same arm lie {100 * spread:.0f} % apart"
    return None
