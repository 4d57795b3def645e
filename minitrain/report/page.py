"""The one-page report, for someone who has never seen data-parallel training."""

from collections.abc import Iterable, Mapping
from typing import Any

from minitrain.analysis.account import CLOSED_WITHIN
from minitrain.analysis.comparison import AGAIN, ALL_CORES, NO_SYNC, ONE_PROCESS, TIMED
from minitrain.report.collectives import all_reduce_sentences
from minitrain.report.glossary import RUNGS
from minitrain.report.ladder import equivalence_sentences, rungs, verdict_in_words
from minitrain.report.manifest import manifest
from minitrain.report.numbers import ms, percent, plural, thousands, times
from minitrain.report.render import Markdown, markdown, table
from minitrain.report.results import Results
from minitrain.report.stragglers import straggler_sentence
from minitrain.report.studied_hosts import studied_hosts
from minitrain.report.studied_ladder import studied_ladder
from minitrain.report.words import (
    PARTS,
    Finding,
    account_headline,
    headline,
    lesson_notes,
    losses_headline,
)

SCALING_PNG, ACCOUNT_PNG, LOSSES_PNG = "scaling.png", "account.png", "losses.png"
UNDEFINED = "-"
LONGEST_TEXT = 80
# what the page has said before it comes to the manifest
TOLD = ("lesson_notes", "verdicts")
TIMING_COLUMNS = {
    "tokens_per_s": "tokens per second",
    "step_mean_ms": "step, mean (ms)",
    "step_p50_ms": "step, p50 (ms)",
    "step_p95_ms": "step, p95 (ms)",
    "allreduce_p50_ms": "all-reduce, p50 (ms)",
    "allreduce_p95_ms": "all-reduce, p95 (ms)",
    "peak_memory_mb": "peak memory (MB)",
    "num_steps_summarized": "steps counted",
}


def page(results: Results, finding: Finding) -> Markdown:
    """The report; it expects its pictures under the three ``*_PNG`` names."""
    made, run = results.provenance[results.largest], results.largest
    return markdown(
        "report.md",
        busy=finding.busy,
        headline=headline(finding),
        num_parameters=thousands(made["model_params"]),
        steps=plural(made["num_steps"], "step"),
        runs=[results.label(run) for run in results.provenance],
        largest=run,
        trained=results.label(run),
        afar=[results.label(r) for r in results.on_several_hosts],
        scaling_png=SCALING_PNG,
        lesson_notes=lesson_notes(finding),
        scaling=_scaling_table(results, finding.strategy),
        equivalence=equivalence_sentences(results),
        verdicts=_verdict_table(results),
        rungs=_rung_table(results),
        ranks=_rank_table(results),
        studied=studied_ladder(results.studied, made),
        hosts=studied_hosts(results),
        account_headline=account_headline(finding),
        account_png=ACCOUNT_PNG,
        accounts=_account_table(results),
        alone=[r for r in results.accounts if results.provenance[r]["world_size"] == 1],
        stragglers=_stragglers(results),
        hook_cost=_hook_cost(results, finding),
        ddp_says=_ddp_says(results),
        timings=_timing_table(results),
        all_reduce=_all_reduce(results, finding),
        losses_headline=losses_headline(results.losses),
        losses_png=LOSSES_PNG,
        origin=_origin_table(results, finding),
    )


def _scaling_table(results: Results, strategy: str) -> Markdown:
    rows = [
        [
            arm_in_words(row["arm"], strategy),
            row["processes"],
            row["threads"],
            *(thousands(row[f"tokens_per_s_{p}"]) for p in ("p5", "p50", "p95")),
        ]
        for row in results.baseline.scaling().to_dict("records")
    ]
    columns = "what ran", "processes", "threads each", "tokens per second, p5"
    return table([*columns, "p50", "p95"], rows)


def arm_in_words(arm: str, strategy: str) -> str:
    """What an arm of the baseline is; ``strategy`` is how gradients become one."""
    if arm.endswith(AGAIN):
        once = arm_in_words(arm.removesuffix(AGAIN), strategy)
        return f"{once}, measured again (A/A)"
    alone = {ONE_PROCESS: "one process", ALL_CORES: "one process on all cores"}
    if arm in alone:
        return alone[arm]
    _, count, *rest = arm.split("-")
    what = {
        "": strategy,
        NO_SYNC: "no communication (the ceiling)",
        TIMED: f"{strategy} with timing hook",
    }["".join(f"-{word}" for word in rest)]
    return f"{plural(int(count), 'process', 'processes')}, {what}"


def _verdict_table(results: Results) -> Markdown:
    rows = [
        [results.label(run), results.verdict(run), cell(results.rests_on(run), "")]
        for run in results.equivalence
    ]
    return table(["run", "verdict", "rests on"], rows)


def _rung_table(results: Results) -> Markdown:
    rows = [
        [
            results.label(run),
            RUNGS.get(name, name),
            {True: "yes", False: "no", None: UNDEFINED}[rung.get("bytes_equal")],
            *(cell(rung.get(key), ".3g") for key in ("max_ulp", "max_abs_diff")),
            verdict_in_words(rung),
            rung.get("detail", ""),
        ]
        for run, ladder in results.equivalence.items()
        for name, rung in rungs(ladder).items()
    ]
    figures = "bits equal", "max ULP", "max difference"
    return table(["run", "compared", *figures, "verdict", "detail"], rows)


def _rank_table(results: Results) -> Markdown:
    rows = [
        [results.label(run), rank, shortened(text), digest[:16]]
        for run, texts in results.first_texts.items()
        for rank, (text, digest) in enumerate(
            zip(texts, results.equivalence[run]["state_sha256"], strict=True)
        )
    ]
    return table(["run", "rank", "first sample in its shard", "state (SHA-256)"], rows)


def _stragglers(results: Results) -> list[str]:
    """A sentence on each run in which a rank could be waited for."""
    timing, made = results.timing, results.provenance
    several = [run for run in timing if made[run]["world_size"] > 1]
    return [
        straggler_sentence(results.label(run), timing[run]["stragglers"])
        for run in several
    ]


def _hook_cost(results: Results, finding: Finding) -> str:
    cost = results.baseline.instrumentation_cost()
    ratio, low, high = times(cost.ratio, cost.low, cost.high)
    verdict = "not judged" if finding.busy else cost.verdict
    return (
        f"{ratio} times the speed without (5-95 % interval {low} to {high}, noise "
        f"floor {percent(cost.noise_floor)}): {verdict}"
    )


def _timing_table(results: Results) -> Markdown:
    rows = [
        [results.label(run), *(cell(timing.get(k), ",.1f") for k in TIMING_COLUMNS)]
        for run, timing in results.timing.items()
    ]
    return table(["run", *TIMING_COLUMNS.values()], rows)


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


def _account_table(results: Results) -> Markdown:
    accounts = results.accounts
    totals = {"sum_ms": "sum", "plain_step_ms": "step without instruments"}
    rows = [
        [
            label,
            *(_part(results, run, account, part) for run, account in accounts.items()),
        ]
        for part, label in {**PARTS, **totals}.items()
        if any(part in account for account in accounts.values())
    ]
    closed = ("yes" if account["closed"] else "no" for account in accounts.values())
    gaps = (f"{account['gap_pct']:.1f} %" for account in accounts.values())
    rows += [["gap", *gaps], ["closed", *closed]]
    names = map(results.label, accounts)
    return table(["mean ms of a step (5-95 % interval)", *names], rows)


def _part(results: Results, run: str, account: Mapping[str, Any], part: str) -> str:
    bounds = results.interval(run, part)
    value = cell(account.get(part), ",.2f")
    return f"{value} ({bounds[0]:,.2f} to {bounds[1]:,.2f})" if bounds else value


def _origin_table(results: Results, finding: Finding) -> Markdown:
    summary = manifest(results, finding)
    shown: dict[str, Any] = {
        **summary.pop("machine"),
        **{key: value for key, value in summary.items() if key not in TOLD},
    }
    rows = [[key, cell(value, ",.6g")] for key, value in shown.items()]
    return table(["what", "value"], rows)


def cell(value: Any, spec: str) -> str:
    """One value for a table: numbers by ``spec``, undefined as a dash."""
    if value is None:
        return UNDEFINED
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ", ".join(cell(each, spec) for each in value)
    if isinstance(value, float):
        return format(value, spec)
    return str(value)


def shortened(text: str) -> str:
    """``text`` in at most LONGEST_TEXT characters."""
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 3] + "..."
