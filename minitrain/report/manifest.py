"""The manifest: one flat summary of the whole result, with where it comes from."""

from typing import Any

from minitrain.analysis.comparison import ONE_PROCESS, Comparison, ddp_arm
from minitrain.report.ladder import byte_equivalent
from minitrain.report.results import Results
from minitrain.report.words import Finding, lesson_notes


def manifest(results: Results, finding: Finding) -> dict[str, Any]:
    """The keys of metrics/manifest.json; what was not measured is None.

    They speak of the largest gloo run. Speeds are medians over the rounds of the
    baseline, on one host; the all-reduce is that run's, on ``num_hosts``.
    ``noise_floor`` is relative, ``over_...`` is how many times a speed the run's is.
    """
    run, baseline = results.largest, results.baseline
    made, timing = results.provenance[run], results.timing[run]
    speeds = {
        world_size: round(baseline.tokens_per_s(arm), 1)
        for world_size, arm in {1: ONE_PROCESS, 2: ddp_arm(2)}.items()
        if world_size in results.gloo_world_sizes
    }
    return {
        "seed": results.seed,
        "lab": "minitrain",
        "backend": made["backend"],
        "world_size": results.world_size,
        "model_params": made["model_params"],
        "steps": made["num_steps"],
        "allreduce_p50_ms": timing["allreduce_p50_ms"],
        "allreduce_p95_ms": timing["allreduce_p95_ms"],
        "tokens_per_sec_1proc": speeds.get(1),
        "tokens_per_sec_2proc": speeds.get(2),
        "byte_equivalent": byte_equivalent(results.equivalence[run]),
        "lesson_notes": lesson_notes(finding),
        "launcher": made["launcher"],
        "verdict": results.verdict(run),
        "verdicts": {
            name: {"verdict": results.verdict(name), "rests_on": results.rests_on(name)}
            for name in results.equivalence
        },
        "sync": made["sync"],
        "num_hosts": finding.num_hosts,
        "threads_per_process": made["threads_per_process"],
        "machine_busy": finding.busy,
        "noise_floor": round(finding.against_one.noise_floor, 5),
        "num_rounds": baseline.num_rounds,
        **_over("one_process", finding.against_one, finding.busy),
        **_over("all_cores", finding.against_all_cores, finding.busy),
        "torch": results.machine["torch"],
        "machine": dict(results.machine),
        "git_commit": made["git_commit"],
        "code_sha256": made.get("code_sha256"),
        "baseline_code_sha256": results.baseline_provenance.get("code_sha256"),
        "measured_at": made["measured_at"],
        "baseline_measured_at": results.baseline_provenance["measured_at"],
        "params_sha256": results.params_sha256,
    }


def _over(opponent: str, one: Comparison, busy: str | None) -> dict[str, Any]:
    """A ratio and what it comes to; nothing where the machine was busy."""
    judged = (None, None) if busy else (round(one.ratio, 4), one.verdict)
    return dict(zip(over(opponent), judged, strict=True))


def over(opponent: str) -> tuple[str, str]:
    """The keys of the ratio to ``opponent``'s speed, and of the verdict on it."""
    return f"over_{opponent}", f"over_{opponent}_verdict"
