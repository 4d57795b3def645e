"""The few numbers that are worth comparing between branches."""

from typing import Any

from minitrain.report.ladder import byte_equivalent
from minitrain.report.results import Results
from minitrain.report.words import Finding


def summary(results: Results, finding: Finding) -> dict[str, Any]:
    """The keys of metrics/summary.json, which ``dvc metrics`` shows; None: undefined.

    Per run: speed and step times of the training stage, the last reduced loss, whether
    ranks and replay agree to the bit, and the largest distance of the final state from
    one process, in units of 1e-9 (dvc shows five decimals). ``speedup`` is that of the
    largest run over one process, from the rounds of the baseline stage; a relative
    change below ``noise_floor`` is none.
    """
    runs = {run: _of_run(results, run) for run in results.timing}
    one = finding.against_one
    speedup = {"speedup": _rounded(one.ratio), "noise_floor": _rounded(one.noise_floor)}
    return {finding.run + "_over_one_process": speedup, **runs}


def _of_run(results: Results, run: str) -> dict[str, Any]:
    timing, rungs = results.timing[run], results.equivalence[run]
    gap = rungs["one_process"]["max_abs_diff"]
    return {
        "tokens_per_s": _rounded(timing["tokens_per_s"], 1),
        "step_p50_ms": _rounded(timing["step_p50_ms"], 2),
        "allreduce_p50_ms": _rounded(timing["allreduce_p50_ms"], 2),
        "loss": _rounded(float(results.losses[run]["loss"].iloc[-1]), 6),
        "verdict": results.verdict(run),
        "bits_equal": byte_equivalent(rungs),
        "one_process_gap_1e_9": None if gap is None else round(gap * 1e9, 1),
    }


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(value, digits)
