"""The files for programs: manifest (a flat summary) and the DVC metric."""

from typing import Any

from minitrain.analysis.account import CLOSED_WITHIN
from minitrain.analysis.comparison import (
    ONE_PROCESS,
    Comparison,
    ddp_arm,
    expected_arms,
)
from minitrain.report.checks import byte_equivalent
from minitrain.report.facts import PARTS, Facts
from minitrain.report.render import sentence

# dvc shows five decimals
BILLIONTHS = 1e9


def manifest(f: Facts) -> dict[str, Any]:
    """Return the keys of metrics/manifest.json; what was not measured is None.

    They describe the largest gloo run. Speeds are medians over the rounds of the
    baseline, on one host; the all-reduce is the run's own, on ``num_hosts``.
    ``noise_floor`` is relative; ``over_...`` is the run's speed over another.
    """
    speeds = {
        world_size: round(f.baseline.tokens_per_s(arm), 1)
        for world_size, arm in {1: ONE_PROCESS, 2: ddp_arm(2)}.items()
        if world_size in f.gloo_world_sizes
    }
    made, timing = f.made, f.timing[f.run]
    return {
        "seed": f.seed,
        "lab": "minitrain",
        "backend": made["backend"],
        "world_size": f.world_size,
        "model_params": made["model_params"],
        "steps": made["num_steps"],
        "allreduce_p50_ms": timing["allreduce_p50_ms"],
        "allreduce_p95_ms": timing["allreduce_p95_ms"],
        "tokens_per_sec_1proc": speeds.get(1),
        "tokens_per_sec_2proc": speeds.get(2),
        "byte_equivalent": byte_equivalent(f.equivalence[f.run]),
        "lesson_notes": lesson_notes(f),
        "launcher": made["launcher"],
        "verdict": f.verdict(f.run),
        "verdicts": {
            run: {"verdict": f.verdict(run), "rests_on": entry.get("rests_on")}
            for run, entry in f.equivalence.items()
        },
        "sync": made["sync"],
        "num_hosts": f.hosts(f.run),
        "threads_per_process": made["threads_per_process"],
        "machine_busy": f.busy,
        "noise_floor": round(f.against_one.noise_floor, 5),
        "num_rounds": f.baseline.num_rounds,
        **_over("one_process", f.against_one, f.busy),
        **_over("all_cores", f.against_all_cores, f.busy),
        "torch": f.machine["torch"],
        "machine": dict(f.machine),
        "git_commit": made["git_commit"],
        "code_sha256": made.get("code_sha256"),
        "baseline_code_sha256": f.baseline_provenance.get("code_sha256"),
        "measured_at": made["measured_at"],
        "baseline_measured_at": f.baseline_provenance["measured_at"],
        "params_sha256": f.params_sha256,
    }


def lesson_notes(f: Facts) -> str:
    """Return the paragraph on why N processes are faster or slower here."""
    notes = sentence("account_notes", f, PARTS, CLOSED_WITHIN)
    return f"{sentence('speed_notes', f)} {notes}".strip()


def _over(opponent: str, one: Comparison, busy: str | None) -> dict[str, Any]:
    judged = (None, None) if busy else (round(one.ratio, 4), one.verdict)
    return dict(zip(over(opponent), judged, strict=True))


def over(opponent: str) -> tuple[str, str]:
    """Return the keys of the ratio to ``opponent``'s speed, and of its verdict."""
    return f"over_{opponent}", f"over_{opponent}_verdict"


def summary(f: Facts) -> dict[str, Any]:
    """Return the keys of metrics/summary.json, the DVC metric.

    Per run: ``verdict``, the last reduced ``loss``, ``gap_billionths`` (largest
    distance of the final state from one process with the whole batch, if compared), and
    ``speedup`` over one process with as many threads as a rank, for runs that the
    baseline holds (None on a busy machine). A relative change of ``speedup`` below
    ``noise_floor`` is noise. Speeds of single runs are left out: runs follow each
    other, so any change would seem to change them.
    """
    runs = {run: _of_run(f, run) for run in f.timing}
    return {"noise_floor": round(f.against_one.noise_floor, 3), **runs}


def _of_run(f: Facts, run: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "verdict": f.verdict(run),
        "loss": round(float(f.losses[run]["loss"].iloc[-1]), 6),
    }
    distance = f.equivalence[run]["one_process"]["max_abs_diff"]
    if distance is not None:
        found["gap_billionths"] = round(distance * BILLIONTHS, 1)
    if run in expected_arms(f.gloo_world_sizes):
        compared = f.baseline.compare(run, ONE_PROCESS)
        found["speedup"] = None if f.busy else round(compared.ratio, 3)
    return found
