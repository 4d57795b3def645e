"""The one-page report, for someone who has never seen data-parallel training."""

from collections.abc import Iterable, Mapping
from typing import Any

from minitrain.analysis.account import CLOSED_WITHIN
from minitrain.analysis.comparison import AGAIN, ALL_CORES, ONE_PROCESS, SILENT, TIMED
from minitrain.report.blocks import (
    Block,
    Definitions,
    Heading,
    Paragraph,
    Picture,
    Table,
    Title,
)
from minitrain.report.collectives import all_reduce_sentences
from minitrain.report.glossary import GLOSSARY, RUNGS
from minitrain.report.ladder import equivalence_sentences, rungs, verdict_in_words
from minitrain.report.manifest import manifest
from minitrain.report.numbers import ms, percent, plural, thousands, times
from minitrain.report.results import Results
from minitrain.report.studied import studied_ladder
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
    "num_steps_summarised": "steps counted",
}


def page(results: Results, finding: Finding) -> list[Block]:
    """The report as blocks; it expects its pictures under the three ``*_PNG`` names."""
    return [
        *_result(results, finding),
        *_equivalence(results),
        *studied_ladder(results.studied, results.machine),
        *_time(results, finding),
        Heading("Did they learn the same?"),
        Picture(LOSSES_PNG, losses_headline(results.losses)),
        Heading("What the words mean"),
        Definitions(GLOSSARY),
        *_provenance(results, finding),
    ]


def _result(results: Results, finding: Finding) -> list[Block]:
    made = results.provenance[results.largest]
    return [
        Title(
            "Does training with several processes compute the same, and is it faster?"
        ),
        Paragraph(f"{headline(finding)}.", lead=not finding.busy),
        Paragraph(
            f"One model of {thousands(made['model_params'])} parameters was trained "
            f"for {plural(made['num_steps'], 'step')} on the same data in each run: "
            f"{', '.join(results.provenance)}. The number is that of processes, which "
            "share every batch and average their gradients. This page says how fast "
            "they were, whether they computed the same thing, and where the time went."
        ),
        Picture(SCALING_PNG, headline(finding)),
        Paragraph(lesson_notes(finding)),
        _scaling_table(results, finding.strategy),
    ]


def _scaling_table(results: Results, strategy: str) -> Table:
    rows = [
        [
            arm_in_words(row["arm"], strategy),
            *(str(row[name]) for name in ("processes", "threads")),
            *(thousands(row[f"tokens_per_s_{p}"]) for p in ("p5", "p50", "p95")),
        ]
        for row in results.baseline.scaling().to_dict("records")
    ]
    columns = "what ran", "processes", "threads each", "tokens per second, p5"
    return Table([*columns, "p50", "p95"], rows)


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
        SILENT: "no communication (the ceiling)",
        TIMED: f"{strategy} with timing hook",
    }["".join(f"-{word}" for word in rest)]
    return f"{plural(int(count), 'process', 'processes')}, {what}"


def _equivalence(results: Results) -> list[Block]:
    rows = [
        [
            run,
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
    header = ["run", "compared", *figures, "verdict", "detail"]
    ranks = [
        [run, str(rank), shortened(text), digest[:16]]
        for run, texts in results.first_texts.items()
        for rank, (text, digest) in enumerate(
            zip(texts, results.equivalence[run]["state_sha256"], strict=True)
        )
    ]
    verdicts = [
        [run, results.verdict(run), cell(results.rests_on(run), "")]
        for run in results.equivalence
    ]
    return [
        Heading("Did they compute the same?"),
        Paragraph(equivalence_sentences(results)),
        Table(["run", "verdict", "rests on"], verdicts),
        Table(header, rows),
        Paragraph(
            "Every rank reads other samples, and every rank of a run must end with the "
            "same state:"
        ),
        Table(["run", "rank", "first sample in its shard", "state (SHA-256)"], ranks),
    ]


def _time(results: Results, finding: Finding) -> list[Block]:
    cost = results.baseline.instrumentation_cost()
    ratio, low, high = times(cost.ratio, cost.low, cost.high)
    verdict = "not judged" if finding.busy else cost.verdict
    timings = [
        [run, *(cell(timing.get(key), ",.1f") for key in TIMING_COLUMNS)]
        for run, timing in results.timing.items()
    ]
    return [
        Heading("Where did the time go?"),
        Picture(ACCOUNT_PNG, account_headline(finding)),
        _account_table(results),
        *_alone(results),
        Paragraph(
            f"Runs are timed by a hook; {results.largest} with it ran at {ratio} times "
            f"the speed without (5-95 % interval {low} to {high}, noise floor "
            f"{percent(cost.noise_floor)}): {verdict}. These runs were made one "
            "after the other; comparisons of speed come from the rounds above alone."
        ),
        *_ddp_says(results),
        Table(["run", *TIMING_COLUMNS.values()], timings),
        *_all_reduce(results, finding),
    ]


def _all_reduce(results: Results, finding: Finding) -> list[Block]:
    if finding.world_size == 1:
        return []
    text = all_reduce_sentences(
        results.studied_collectives,
        results.machine,
        finding.sync,
        finding.world_size,
        4 * results.provenance[finding.run]["model_params"],
    )
    return [Paragraph(text)]


def _ddp_says(results: Results) -> list[Block]:
    """DDP's own log beside the clock; nothing where this torch has none."""
    says = results.timing[results.largest]["ddp_says"]
    parts = [says["forward_ms"], says["backward_ms"]]
    if any(part["difference_pct"] is None for part in parts):
        return []
    ddp, ours = (
        " and ".join(ms(part[who]) for part in parts) for who in ("ddp", "ours")
    )
    agree = all(abs(part["difference_pct"]) <= 100 * CLOSED_WITHIN for part in parts)
    return [
        Paragraph(
            f"Forward and backward of a step of {results.largest} without instruments "
            f"take {ddp} by DDP's own log, {ours} by the clock of this report: they "
            f"{'agree' if agree else 'do not agree'} within {percent(CLOSED_WITHIN)}."
        )
    ]


def _account_table(results: Results) -> Table:
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
    return Table(["mean ms of a step (5-95 % interval)", *accounts], rows)


def _alone(results: Results) -> list[Block]:
    """What the wait of one process is, where an account shows one."""
    made = results.provenance
    alone = [run for run in results.accounts if made[run]["world_size"] == 1]
    if not alone:
        return []
    barrier = "has nobody to wait for: its wait is what a barrier itself costs."
    return [Paragraph(f"One process ({', '.join(alone)}) {barrier}")]


def _part(results: Results, run: str, account: Mapping[str, Any], part: str) -> str:
    bounds = results.interval(run, part)
    value = cell(account.get(part), ",.2f")
    return f"{value} ({bounds[0]:,.2f} to {bounds[1]:,.2f})" if bounds else value


def _provenance(results: Results, finding: Finding) -> list[Block]:
    summary = manifest(results, finding)
    shown: dict[str, Any] = {
        **summary.pop("machine"),
        **{key: value for key, value in summary.items() if key not in TOLD},
    }
    rows = [[key, cell(value, ",.6g")] for key, value in shown.items()]
    return [
        Heading("Machine and origin"),
        Paragraph(
            f"Everything was measured on one machine; {results.largest} is meant."
        ),
        Table(["what", "value"], rows),
    ]


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
