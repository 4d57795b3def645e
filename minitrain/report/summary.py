"""The few numbers that are worth comparing between branches.

Speeds of single runs are not among them: runs are made one after the other, so that a
change of the learning rate would seem to change them.
"""

from typing import Any

from minitrain.analysis.comparison import ONE_PROCESS, expected_arms
from minitrain.report.results import Results
from minitrain.report.words import Finding

# dvc shows five decimals
BILLIONTHS = 1e9


def summary(results: Results, finding: Finding) -> dict[str, Any]:
    """The keys of metrics/summary.json, which ``dvc metrics`` shows; None: not judged.

    Per run: the ``verdict`` on it and the last reduced ``loss``; where it was compared
    with one process that takes the whole batch, the largest distance of the final
    states, ``gap_billionths``; where its processes took part in the baseline,
    ``speedup``, how many times the speed of one process with as many threads they have,
    None on a machine that was busy. A relative change below ``noise_floor`` is none.
    """
    runs = {run: _of_run(results, finding, run) for run in results.timing}
    return {"noise_floor": round(finding.against_one.noise_floor, 3), **runs}


def _of_run(results: Results, finding: Finding, run: str) -> dict[str, Any]:
    told: dict[str, Any] = {
        "verdict": results.verdict(run),
        "loss": round(float(results.losses[run]["loss"].iloc[-1]), 6),
    }
    gap = results.equivalence[run]["one_process"]["max_abs_diff"]
    if gap is not None:
        told["gap_billionths"] = round(gap * BILLIONTHS, 1)
    if run in expected_arms(results.gloo_world_sizes):
        compared = results.baseline.compare(run, ONE_PROCESS)
        told["speedup"] = None if finding.busy else round(compared.ratio, 3)
    return told
