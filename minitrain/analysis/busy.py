"""Detection of a machine that was too busy for its timings to be used.

Other processes slow ranks and arms (configurations) unequally, which no noise floor
shows. Timings of a busy machine are displayed as ``NOT_MEASURED``; in
metrics/summary.json and as speeds in metrics/manifest.json they are null.
"""

from collections.abc import Mapping
from typing import Any

from minitrain.core.cpu_load import taken

NOT_MEASURED = "not measured (machine busy)"
# allowed share of the CPU time of other processes, including the hypervisor
MAX_TAKEN = 0.10
# allowed p95 / p5 - 1 of an arm's rounds, median over the arms
MAX_SPREAD = 0.50


def why_busy(load: Mapping[str, Any] | None, spread: float = 0.0) -> str | None:
    """Return why the machine was too busy, as a clause; None if timings can be used.

    ``load`` is the result of :func:`minitrain.core.cpu_load.load_of` (unknown shares
    count as 0), ``spread`` of :meth:`minitrain.analysis.comparison.Rounds.spread`.
    """
    share = taken(load or {})
    if share > MAX_TAKEN:
        return f"other processes used {100 * share:.0f} % of the CPU"
    if spread > MAX_SPREAD:
        return f"rounds of the same arm lie {100 * spread:.0f} % apart"
    return None
