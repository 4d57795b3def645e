"""The tables of the report: every number that its sentences are made of."""

from collections.abc import Iterable, Mapping
from typing import Any

from minitrain.analysis.comparison import AGAIN, ALL_CORES, NO_SYNC, ONE_PROCESS, TIMED
from minitrain.proof.words import verdict_in_words
from minitrain.report.account_words import PARTS
from minitrain.report.glossary import RUNGS
from minitrain.report.ladder import rungs
from minitrain.report.manifest import manifest
from minitrain.report.numbers import plural, thousands
from minitrain.report.render import Markdown, table
from minitrain.report.results import Results
from minitrain.report.words import Finding

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


def scaling_table(results: Results, strategy: str) -> Markdown:
    """What every arm of the baseline ran at."""
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


def verdict_table(results: Results) -> Markdown:
    """The verdict on each run, and what it rests on."""
    rows = [
        [results.label(run), results.verdict(run), cell(results.rests_on(run), "")]
        for run in results.equivalence
    ]
    return table(["run", "verdict", "rests on"], rows)


def rung_table(results: Results) -> Markdown:
    """Every comparison of every run, with its figures."""
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


def rank_table(results: Results) -> Markdown:
    """What each rank read first, and the hash of its final state."""
    rows = [
        [results.label(run), rank, shortened(text), digest[:16]]
        for run, texts in results.first_texts.items()
        for rank, (text, digest) in enumerate(
            zip(texts, results.equivalence[run]["state_sha256"], strict=True)
        )
    ]
    return table(["run", "rank", "first sample in its shard", "state (SHA-256)"], rows)


def timing_table(results: Results) -> Markdown:
    """What the steps of each run took."""
    rows = [
        [results.label(run), *(cell(timing.get(k), ",.1f") for k in TIMING_COLUMNS)]
        for run, timing in results.timing.items()
    ]
    return table(["run", *TIMING_COLUMNS.values()], rows)


def account_table(results: Results) -> Markdown:
    """The parts of a step of each run, and whether they add up to it."""
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
    # no gap below zero that rounds to none
    gaps = (f"{round(of['gap_pct'], 1) + 0:.1f} %" for of in accounts.values())
    rows += [["sum against that step", *gaps], ["adds up to a step", *closed]]
    names = map(results.label, accounts)
    return table(["mean ms of a step (5-95 % interval)", *names], rows)


def _part(results: Results, run: str, account: Mapping[str, Any], part: str) -> str:
    bounds = results.interval(run, part)
    value = cell(account.get(part), ",.2f")
    return f"{value} ({bounds[0]:,.2f} to {bounds[1]:,.2f})" if bounds else value


def origin_table(results: Results, finding: Finding) -> Markdown:
    """Machine, code and settings behind all of it."""
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
