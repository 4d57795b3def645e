"""How the steps were timed: what the instruments cost, and who else looked."""

from minitrain.analysis.account import CLOSED_WITHIN
from minitrain.report.collectives import all_reduce_sentences
from minitrain.report.numbers import ms, percent, times
from minitrain.report.results import Results
from minitrain.report.words import Finding


def how_it_was_timed(results: Results, finding: Finding) -> list[str]:
    """Paragraphs on what stands beside the account of the largest gloo run."""
    ddp, own = _ddp_says(results), results.label(results.largest)
    log = f"Forward and backward of a step of {own} without instruments take {ddp}."
    return [
        f"Runs are timed by a hook; {results.largest} with it ran at "
        f"{_hook_cost(results, finding)}. These runs were made one after the other; "
        "comparisons of speed come from the rounds above alone.",
        *([log] if ddp else []),
        *([text] if (text := _all_reduce(results, finding)) else []),
    ]


def _hook_cost(results: Results, finding: Finding) -> str:
    cost = results.baseline.instrumentation_cost()
    ratio, low, high = times(cost.ratio, cost.low, cost.high)
    verdict = "not judged" if finding.busy else cost.verdict
    return (
        f"{ratio} times the speed without (5-95 % interval {low} to {high}, noise "
        f"floor {percent(cost.noise_floor)}): {verdict}"
    )


def _ddp_says(results: Results) -> str:
    """DDP's own log beside the clock; nothing where this torch has none."""
    says = results.timing[results.largest]["ddp_says"]
    parts = [says["forward_ms"], says["backward_ms"]]
    if any(part["difference_pct"] is None for part in parts):
        return ""
    ddp, ours = (
        " and ".join(ms(part[who]) for part in parts) for who in ("ddp", "ours")
    )
    agree = all(abs(part["difference_pct"]) <= 100 * CLOSED_WITHIN for part in parts)
    return (
        f"{ddp} by DDP's own log, {ours} by the clock of this report: they "
        f"{'agree' if agree else 'do not agree'} within {percent(CLOSED_WITHIN)}"
    )


def _all_reduce(results: Results, finding: Finding) -> str:
    if finding.world_size == 1:
        return ""
    return all_reduce_sentences(
        results.studied_collectives,
        results.machine,
        finding.sync,
        finding.world_size,
        4 * results.provenance[finding.run]["model_params"],
        finding.num_hosts,
    )
