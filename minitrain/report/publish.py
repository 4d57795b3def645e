"""Publication of results of the stages as charts, page, manifest and metric."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from minitrain.analysis.comparison import Comparison
from minitrain.analysis.verdicts import VERDICTS
from minitrain.core.arms import ALL_CORES, ONE_PROCESS
from minitrain.core.errors import EvidenceError
from minitrain.core.files import atomic_path, open_atomic, reading, write_json
from minitrain.core.params import load_params
from minitrain.report.breach import breach_line
from minitrain.report.checks import byte_equivalent, outcomes_of
from minitrain.report.facts import Facts, exposed_comm_pct
from minitrain.report.overview import draw_overview
from minitrain.report.pictures import draw_account, draw_losses, draw_scaling
from minitrain.report.read import read_facts, read_runs
from minitrain.report.render import markdown, sentence, write_page

# sentences that state the findings: the titles of the charts
HEADLINES = {
    "scaling": "headline",
    "account": "account_headline",
    "losses": "losses_headline",
}
TIMES = ("step_p50_ms", "allreduce_p50_ms", "allreduce_p95_ms")


def publish(root: Path) -> str:
    """Write charts, tables, manifest and page of the project ``root``; return the
    headline of the report. Raises EvidenceError if a check failed, which its stage has
    published already, and UserError if a run was not measured or a file is damaged.
    """
    params, metrics = load_params(root / "params.yaml"), root / "metrics"
    source = metrics / "equivalence.json"
    equivalence = read_runs(source, params, "verdict", "rests_on")
    with reading(source):
        for entry in equivalence.values():
            VERDICTS.index(entry["verdict"])
            # an unknown verdict of a check is a KeyError
            for outcome in outcomes_of(entry).values():
                outcome.figures["max_ulp"], outcome.figures["detail"]
    if line := breach_line(equivalence):
        raise EvidenceError(f"breach: {line}")
    f = read_facts(root, params, equivalence)

    titles = {chart: sentence(name, f) for chart, name in HEADLINES.items()}
    with open_atomic(metrics / "overview.svg") as file:
        file.write(draw_overview(f))
    with atomic_path(metrics / "scaling.png") as path:
        draw_scaling(f, titles["scaling"], path)
    with atomic_path(metrics / "account.png") as path:
        accounts = {f.label(run): of for run, of in f.accounts.items()}
        busy = [f.label(run) for run in f.timing if f.busy_during(run)]
        draw_account(accounts, titles["account"], path, busy)
    with atomic_path(metrics / "losses.png") as path:
        draw_losses(f.losses, titles["losses"], path)

    losses = pd.concat([table.assign(run=run) for run, table in f.losses.items()])
    tables = {"scaling": f.scaling, "losses": losses[["run", "step", "loss"]]}
    for name, table in tables.items():
        with open_atomic(metrics / f"{name}.csv") as file:
            table.to_csv(file, index=False)
    write_json(metrics / "manifest.json", manifest(f))
    write_json(metrics / "summary.json", summary(f))
    write_page(report(f), metrics)
    return titles["scaling"]


def report(f: Facts) -> Markup:
    """Return the one-page report in Markdown; its charts are in the same folder."""
    return markdown(
        "report.md",
        f=f,
        manifest=manifest(f),
        ladder=f.ladder_study,
        ladder_mismatch=f.ladder_study.mismatch(f.made),
        hosts=f.hosts_study,
        hosts_mismatch=f.hosts_study.mismatch(f.made),
        **{name: sentence(name, f) for name in HEADLINES.values()},
    )


def manifest(f: Facts) -> dict[str, Any]:
    """Return the content of metrics/manifest.json, about the largest gloo run.

    Speeds are medians over the rounds of the speed comparison, on one host; all-reduce
    times are from the run itself, on ``num_hosts``. ``over_X`` is the run's speed
    divided by the speed of X; ``noise_floor`` is relative. None: not measured.
    """
    speeds = {
        world_size: round(f.baseline.tokens_per_s(arm), 1)
        for world_size, arm in {1: ONE_PROCESS, 2: "gloo-2"}.items()
        if world_size in f.gloo_world_sizes and not f.busy
    }
    made, timing = f.made, _measured(f, f.run)
    # why several processes are faster or slower
    notes = f"{sentence('speed_notes', f)} {sentence('account_notes', f)}"
    # relative increase of the step time
    cost_pct = round(100 * (1 / f.instrument_cost.ratio - 1), 2)
    return {
        "seed": f.seed,
        "lab": "minitrain",
        "backend": made["backend"],
        "world_size": f.world_size,
        "model_params": made["model_params"],
        "steps": made["num_steps"],
        "allreduce_p50_ms": timing.get("allreduce_p50_ms"),
        "allreduce_p95_ms": timing.get("allreduce_p95_ms"),
        "tokens_per_sec_1proc": speeds.get(1),
        "tokens_per_sec_2proc": speeds.get(2),
        "byte_equivalent": byte_equivalent(f.equivalence[f.run]),
        "lesson_notes": notes.strip(),
        "launcher": made["launcher"],
        "verdict": f.verdict(f.run),
        "verdicts": {
            run: {"verdict": f.verdict(run), "rests_on": entry["rests_on"]}
            for run, entry in f.equivalence.items()
        },
        "sync": made["sync"],
        "num_hosts": f.hosts(f.run),
        "threads_per_process": made["threads_per_process"],
        "machine_busy": f.busy,
        "noise_floor": None if f.busy else round(f.against_one.noise_floor, 5),
        "instrument_cost_pct": None if f.busy else cost_pct,
        "num_rounds": f.baseline.num_rounds,
        **_over("one_process", f.against_one, f.busy),
        **_over("all_cores", f.against_all_cores, f.busy),
        "torch": f.machine["torch"],
        "machine": f.machine,
        "git_commit": made["git_commit"],
        "code_sha256": made["code_sha256"],
        "baseline_code_sha256": f.baseline_provenance["code_sha256"],
        "measured_at": made["measured_at"],
        "baseline_measured_at": f.baseline_provenance["measured_at"],
        "params_sha256": f.params_sha256,
    }


def _over(opponent: str, one: Comparison, busy: str | None) -> dict[str, Any]:
    ratio, verdict = (None, None) if busy else (round(one.ratio, 4), one.verdict)
    return {f"over_{opponent}": ratio, f"over_{opponent}_verdict": verdict}


def summary(f: Facts) -> dict[str, Any]:
    """Return the content of metrics/summary.json, described in docs/reference/files.md.
    Values of a busy machine are None.
    """
    busy = {"baseline": f.busy, **{run: f.busy_during(run) for run in f.timing}}
    return {
        "noise_floor": None if f.busy else round(f.against_one.noise_floor, 3),
        "machine_busy": ", ".join(name for name in busy if busy[name]) or None,
        **{run: _of_run(f, run) for run in f.timing},
    }


def _of_run(f: Facts, run: str) -> dict[str, Any]:
    # the baseline times one process with DDP only if there is no larger run
    arm = ONE_PROCESS if run == "gloo-1" and run not in f.arms else run
    has_speed, timing = arm in f.arms and not f.busy, _measured(f, run)
    distance = f.equivalence[run]["one_process"]["max_abs_diff"]
    # a single rank does not communicate; of several hosts it includes waits
    exists = run in f.accounts and f.hosts(run) == 1 < f.provenance[run]["world_size"]
    exposed = exposed_comm_pct(f.accounts[run]) if exists else None

    def over(other: str) -> float | None:
        return round(f.baseline.compare(arm, other).ratio, 3) if has_speed else None

    return {
        "verdict": f.verdict(run),
        "loss": round(float(f.losses[run]["loss"].iloc[-1]), 6),
        "max_abs_diff": None if distance is None else float(f"{distance:.3g}"),
        "tokens_per_s": round(f.baseline.tokens_per_s(arm)) if has_speed else None,
        "speedup": over(ONE_PROCESS),
        "speedup_all_cores": over(ALL_CORES),
        **{key: _rounded(timing.get(key), 2) for key in TIMES},
        "exposed_comm_pct": _rounded(exposed, 1),
    }


def _measured(f: Facts, run: str) -> Mapping[str, Any]:
    return {} if f.busy_during(run) else f.timing[run]


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
