"""The tables of the report, in Markdown: all numbers that its sentences rest on."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
from markupsafe import Markup

from minitrain.analysis.comparison import AGAIN, ALL_CORES, NO_SYNC, ONE_PROCESS, TIMED
from minitrain.proof.words import verdict_in_words
from minitrain.report.checks import MARKS, VERDICT_MARKS, checks_of
from minitrain.report.facts import PARTS, Facts, num_hosts
from minitrain.report.glossary import RUNGS
from minitrain.report.manifest import manifest
from minitrain.report.numbers import ms, plural, thousands
from minitrain.report.render import sentence, table
from minitrain.report.studied import BYTES, DISTANCES, Hosts, Ladder, LossCurve

UNDEFINED = "-"
NOT_MEASURED = "not measured (machine busy)"
LONGEST_TEXT = 80
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
HOST_COLUMNS = (
    "where",
    "processes",
    "tokens per second",
    "least and most",
    "all-reduces of a step, expected",
    "measured",
    "bits",
)


def tables(f: Facts) -> dict[str, Markup]:
    """Return the tables of one project's result, by name."""
    return {
        "verdicts": _verdicts(f),
        "checks": _checks(f),
        "ranks": _ranks(f),
        "scaling": _scaling(f),
        "account": _account(f),
        "timing": _timing(f),
        "origin": _origin(f),
    }


def matrix(f: Facts) -> Markup:
    """Return the outcome of each check in each run."""
    verdicts = {run: f.verdict(run) for run in f.equivalence}
    head = [f"{_label(f, r)}: {VERDICT_MARKS[v]} {v}" for r, v in verdicts.items()]
    rows = [[RUNGS.get(n, n), *of.values()] for n, of in f.checks.items()]
    return table(["compared", *head], rows)


def arm_name(arm: str, strategy: str) -> str:
    """Return what an arm of the baseline is; ``strategy`` is the one of DDP arms."""
    if arm.endswith(AGAIN):
        return f"{arm_name(arm.removesuffix(AGAIN), strategy)}, A/A duplicate"
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


def _label(f: Facts, run: str) -> str:
    return sentence("label", f, run)


def _verdicts(f: Facts) -> Markup:
    rows = [
        [_label(f, run), f.verdict(run), cell(entry.get("rests_on"), "")]
        for run, entry in f.equivalence.items()
    ]
    return table(["run", "verdict", "rests on"], rows)


def _checks(f: Facts) -> Markup:
    rows = [
        [
            _label(f, run),
            RUNGS.get(name, name),
            {True: "yes", False: "no", None: UNDEFINED}[check.get("bytes_equal")],
            *(cell(check.get(key), ".3g") for key in ("max_ulp", "max_abs_diff")),
            verdict_in_words(check),
            check.get("detail", ""),
        ]
        for run, entry in f.equivalence.items()
        for name, check in checks_of(entry).items()
    ]
    figures = "bits equal", "max ULP", "max difference"
    return table(["run", "compared", *figures, "verdict", "detail"], rows)


def _ranks(f: Facts) -> Markup:
    rows = [
        [_label(f, run), rank, shortened(text), digest[:16]]
        for run, texts in f.first_texts.items()
        for rank, (text, digest) in enumerate(
            zip(texts, f.equivalence[run]["state_sha256"], strict=True)
        )
    ]
    return table(["run", "rank", "first sample in its shard", "state (SHA-256)"], rows)


def _scaling(f: Facts) -> Markup:
    rows = [
        [
            arm_name(row["arm"], f.strategy),
            row["processes"],
            row["threads"],
            *(thousands(row[f"tokens_per_s_{p}"]) for p in ("p5", "p50", "p95")),
        ]
        for row in f.scaling.to_dict("records")
    ]
    columns = "what ran", "processes", "threads each", "tokens per second, p5"
    return table([*columns, "p50", "p95"], rows)


def _timing(f: Facts) -> Markup:
    rows = [
        [_label(f, run), *(cell(timing.get(k), ",.1f") for k in TIMING_COLUMNS)]
        for run, timing in f.timing.items()
    ]
    return table(["run", *TIMING_COLUMNS.values()], rows)


def _account(f: Facts) -> Markup:
    accounts = f.accounts
    totals = {"sum_ms": "sum", "plain_step_ms": "step without instruments"}
    rows = [
        [label, *(_part(f, run, account, part) for run, account in accounts.items())]
        for part, label in {**PARTS, **totals}.items()
        if any(part in account for account in accounts.values())
    ]
    closed = ("yes" if account["closed"] else "no" for account in accounts.values())
    # no distance below zero that rounds to none
    apart = (f"{round(of['gap_pct'], 1) + 0:.1f} %" for of in accounts.values())
    rows += [["sum against that step", *apart], ["adds up to a step", *closed]]
    names = [_label(f, run) for run in accounts]
    return table(["mean ms of a step (5-95 % interval)", *names], rows)


def _part(f: Facts, run: str, account: Mapping[str, Any], part: str) -> str:
    bounds = f.interval(run, part)
    value = cell(account.get(part), ",.2f")
    return f"{value} ({bounds[0]:,.2f} to {bounds[1]:,.2f})" if bounds else value


def _origin(f: Facts) -> Markup:
    found = manifest(f)
    for told in ("lesson_notes", "verdicts"):
        del found[told]
    shown = {**found.pop("machine"), **found}
    rows = [[key, cell(value, ",.6g")] for key, value in shown.items()]
    return table(["what", "value"], rows)


def bugs_table(bugs: Mapping[str, Any]) -> Markup:
    """Return a row for each bug of the study ``zoo``."""
    rows = []
    for name, bug in bugs["bugs"].items():
        check, caught = bug["check"].replace("_", " "), bug["caught_by"]
        more = f", and {len(caught) - 1} more" if len(caught) > 1 else ""
        met = bug["check"] in caught
        curve = "~" if bug["loss"] == LossCurve.HIDDEN else "✗"
        rows.append(
            [
                name.replace("_", " "),
                bug["met_in"],
                f"{curve} {bug['loss']}",
                f"✓ {check}{more}" if met else f"✗ not {check}",
            ]
        )
    return table(["injected bug", "met in", "loss curve", "caught by"], rows)


def ladder_table(ladder: Ladder) -> Markup:
    """Return a row for each case of the study ``ladder``."""
    bits = [f"bits: {name}" for name in BYTES.values()]
    apart = [f"from one process: {name}" for name in DISTANCES.values()]
    rows = [
        [*row[:2], *(_mark(verdict) for verdict in row[2:])] for row in ladder.rows()
    ]
    return table(["what", "processes", *bits, *apart], rows)


def _mark(verdict: str) -> str:
    if verdict in ("breach", "undecided"):
        return verdict
    return str(MARKS.get(verdict, verdict))


def hosts_table(hosts: Hosts, f: Facts) -> Markup:
    """Return a row for each setting of the study ``network``, and the runs on GPUs."""
    rows = [_host_row(row) for row in hosts.rows()]
    for run, timing in f.timing.items():
        if run.startswith("nccl-"):
            made, reduced = f.provenance[run], timing["allreduce_p50_ms"]
            rows.append(
                [
                    f"{plural(num_hosts(timing), 'host')}, {made['machine']['gpu']}",
                    str(made["world_size"]),
                    thousands(timing["tokens_per_s"]),
                    UNDEFINED,
                    UNDEFINED,
                    ms(reduced) if reduced is not None else UNDEFINED,
                    f.verdict(run),
                ]
            )
    return table(HOST_COLUMNS, rows)


def _host_row(row: Mapping[Any, Any]) -> list[str]:
    least, most = row["tokens_per_s_least"], row["tokens_per_s_most"]
    expected, measured = row["allreduce_expected_ms"], UNDEFINED
    hosts, far = plural(row["hosts"], "host"), row["hosts"] > 1
    same = "the bits of one host" if row["same_on_one_host"] else "other bits"
    if row["processes"] > 1:
        measured = ms(row["allreduce_ms"])
        if row["expectation"] in ("as expected", "not told apart"):
            measured += f", {row['expectation']}"
    known = row["processes"] > 1 and pd.notna(expected)
    return [
        f"{hosts}, {row['link']}" if far else hosts,
        str(row["processes"]),
        thousands(row["tokens_per_s"]),
        f"{thousands(least)} to {thousands(most)}",
        ms(expected) if known else UNDEFINED,
        measured,
        f"{row['verdict']}, {same}" if far else row["verdict"],
    ]


def cell(value: Any, spec: str) -> str:
    """Return one value for a table: numbers by ``spec``, undefined as a dash."""
    if value is None:
        return UNDEFINED
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ", ".join(cell(each, spec) for each in value)
    if isinstance(value, float):
        return format(value, spec)
    return str(value)


def shortened(text: str) -> str:
    """Return ``text`` in at most LONGEST_TEXT characters."""
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 3] + "..."
