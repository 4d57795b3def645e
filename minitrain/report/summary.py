"""The few numbers that are worth comparing between branches.

Speeds of single runs are not among them: runs are made one after the other, so that a
change of the learning rate would seem to change them.
"""

from typing import Any

from minitrain.report.ladder import byte_equivalent
from minitrain.report.results import Results
from minitrain.report.words import Finding


def summary(results: Results, finding: Finding) -> dict[str, Any]:
    """The keys of metrics/summary.json, which ``dvc metrics`` shows; None: undefined.

    Per run: the verdict on it, the last reduced loss, whether ranks and replay agree to
    the bit, and the largest distance of the final state from one process, in units of
    1e-9 (dvc shows five decimals). ``speedup`` is that of the largest run over one
    process, from the rounds of the baseline stage, None where ``machine_busy``; a
    relative change below ``noise_floor`` is none.
    """
    runs = {run: _of_run(results, run) for run in results.timing}
    one = finding.against_one
    speed = {
        "speedup": None if finding.busy else round(one.ratio, 3),
        "noise_floor": round(one.noise_floor, 3),
        "machine_busy": bool(finding.busy),
    }
    return {finding.run + "_over_one_process": speed, **runs}


def _of_run(results: Results, run: str) -> dict[str, Any]:
    rungs = results.equivalence[run]
    gap = rungs["one_process"]["max_abs_diff"]
    return {
        "verdict": results.verdict(run),
        "loss": round(float(results.losses[run]["loss"].iloc[-1]), 6),
        "bits_equal": byte_equivalent(rungs),
        "one_process_gap_1e_9": None if gap is None else round(gap * 1e9, 1),
    }
