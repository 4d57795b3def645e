"""Whether a machine was quiet enough while something was timed on it.

What other processes take disturbs arms and ranks unequally, so that no noise floor
shows it: what was timed meanwhile is not judged. It is shown as ``NOT_MEASURED``, and
is null in the metrics.
"""

from collections.abc import Mapping
from typing import Any

# in the place of any number
NOT_MEASURED = "not measured (machine busy)"
# share of the cores' time that others may take, the hypervisor included
MAX_TAKEN = 0.10
# p95 / p5 - 1 of an arm's rounds, median over the arms
MAX_SPREAD = 0.50


def why_busy(load: Mapping[str, Any] | None, spread: float = 0.0) -> str | None:
    """Return why timings are not judged, as a clause; None on a quiet machine.

    ``load`` is that of :func:`minitrain.core.load.load_of`, as far as it is known;
    ``spread`` how far the rounds of an arm lie apart.
    """
    shares = [(load or {}).get(key) for key in ("others_share", "steal_share")]
    taken = sum(share for share in shares if share is not None)
    if taken > MAX_TAKEN:
        return f"other processes used {100 * taken:.0f} % of the CPU"
    if spread > MAX_SPREAD:
        return f"rounds of the same arm lie {100 * spread:.0f} % apart"
    return None
