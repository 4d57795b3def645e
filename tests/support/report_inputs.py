"""Synthetic measurements in the formats of the stages, for tests of the report."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from zoo_digest import LossCurve

from minitrain.analysis.comparison import baseline_rounds
from minitrain.core.arms import baseline_arms
from minitrain.core.files import write_json
from minitrain.report.facts import Facts
from minitrain.report.publish import manifest, summary
from minitrain.report.study_results import BYTES, DISTANCES, Hosts, LadderStudy

UNCHANGED = "None of its 9 measured files has changed since."
MACHINE = {
    "cpu": "Example CPU",
    "gpu": None,
    "cores": 2,
    "memory_gib": 24,
    "kernel": "6.1.0",
    "python": "3.11.7",
    "torch": "2.13.0+cpu",
}
SPEEDS = {
    "one_process": 10_000,
    "one_process_all_cores": 13_000,
    "gloo-1": 9_900,
    "gloo-2": 16_400,
    "gloo-2-no-sync": 19_000,
    "gloo-4": 15_500,
    "gloo-4-no-sync": 19_300,
}
ACCOUNT = {
    "data_ms": 0.5,
    "forward_ms": 20.0,
    "backward_compute_ms": 60.0,
    "interference_ms": 4.0,
    "wait_ms": 1.25,
    "comm_exposed_ms": 10.0,
    "other_ms": 0.25,
    "optimizer_ms": 4.0,
    "step_ms": 100.0,
}


def rounds(
    speeds: dict[str, float], num_rounds: int = 20, noise: float = 0.01
) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    rows = []
    for number in range(num_rounds):
        drift = rng.uniform(0.8, 1.2)
        for arm, speed in speeds.items():
            seconds = 4_000 / (speed * drift * np.exp(rng.normal(0, noise)))
            world_size = int(arm.split("-")[1]) if arm.startswith("gloo") else 1
            threads = 2 if arm == "one_process_all_cores" else 1
            shape = (world_size, threads, world_size)
            rows.append((number, arm, *shape, 4_000, seconds))
    columns = ["round", "arm", "processes", "threads", "world_size"]
    return pd.DataFrame(rows, columns=[*columns, "tokens", "seconds"])


def arms(world_sizes: list[int], **speeds: float) -> dict[str, float]:
    """Speeds of the arms for ``world_sizes``; ``gloo_2=...`` overrides one."""
    known = dict(SPEEDS)
    for name, speed in speeds.items():
        known[name.replace("_", "-") if name.startswith("gloo") else name] = speed
    for arm in baseline_arms(world_sizes):
        alike = arm.repeat_of or arm.name.removesuffix("-timed")
        known.setdefault(arm.name, known[alike])
    return {arm.name: known[arm.name] for arm in baseline_arms(world_sizes)}


def account_of(world_size: int) -> dict[str, Any]:
    """A step account; one process does not wait."""
    if world_size > 1:
        return dict(ACCOUNT)
    alone = {part: ms for part, ms in ACCOUNT.items() if part != "wait_ms"}
    return alone | {"step_ms": 98.75}


def ladder_of(world_size: int) -> dict[str, Any]:
    """All rungs; those that need a second rank or process are not run for one."""
    near = rung("within tolerance", 812, 3.1e-06, "allowed: 0.0003")
    alone = rung("not run", detail="it has no peer")
    several = world_size > 1
    return {
        "trained": rung("passed", detail="50 of 50 tensors changed"),
        "ranks": rung("equal", 0, 0.0) if several else alone,
        "data": rung("equal") | {"bytes_equal": True},
        "replay_gradients": rung("equal") | {"bytes_equal": True},
        "replay_parameters": rung("equal") | {"bytes_equal": True},
        "replay": rung("equal", 0, 0.0),
        "one_process_gradients": near if several else alone,
        "one_process": near if several else alone,
        "state_sha256": ["ab" * 32] * world_size,
        "verdict": "undecided",
        "rests_on": "REASON",
    }


def rung(
    verdict: str,
    max_ulp: int | None = None,
    max_abs_diff: float | None = None,
    detail: str = "",
) -> dict[str, Any]:
    """One rung; bits are equal if the distance is 0, unknown without one."""
    return {
        "bytes_equal": None if max_ulp is None else max_ulp == 0,
        "max_ulp": max_ulp,
        "max_abs_diff": max_abs_diff,
        "verdict": verdict,
        "detail": detail,
    }


def timing_of(world_size: int) -> dict[str, Any]:
    """One run's entry of timing.json; one process has no all-reduce."""
    reduces = world_size > 1
    return {
        "machine_busy": None,
        "tokens_per_s": 16_000.5,
        "step_mean_ms": 98.0,
        "step_p50_ms": 97.0,
        "step_p95_ms": 110.0,
        "allreduce_p50_ms": 12.5 if reduces else None,
        "allreduce_p95_ms": 19.5 if reduces else None,
        "num_hosts": 1,
        "peak_memory_mb": 310.0,
        "num_steps_summarized": 45,
        "account": account_of(world_size),
        "stragglers": stragglers_of(world_size),
        "ddp_says": {
            "forward_ms": {"ddp": 20.5, "ours": 21.5, "difference_pct": -4.7},
            "backward_ms": {"ddp": 70.5, "ours": 70.0, "difference_pct": 0.7},
        },
    }


def stragglers_of(world_size: int) -> dict[str, Any]:
    alone = "with one rank, no other rank waits" if world_size == 1 else None
    return {
        "slow": [],
        "others_wait_ms": None,
        "visible_ms": None if alone else 8.25,
        "step_ms": 97.0,
        "num_steps": 42,
        "undecided": alone,
    }


def provenance_of(world_size: int, **changes: Any) -> dict[str, Any]:
    return {
        "launcher": "torchrun",
        "sync": "ddp",
        "backend": "gloo",
        "world_size": world_size,
        "num_hosts": 1,
        "model_params": 870_000,
        "gradient_bytes": 3_480_000,
        "num_steps": 100,
        "threads_per_process": 1,
        "measured_at": "2026-01-02T03:04:05Z",
        "git_commit": "0123456789abcdef",
        "code_sha256": "ab" * 32,
        "peak_memory_mb": [310.0] * world_size,
        "machine": MACHINE,
    } | changes


def studied_ladder(**verdicts: str) -> pd.DataFrame:
    """Two runs of the study, one without a comparison with one process."""
    rows = []
    for case in ("AdamW", "AdamW, dropout"):
        of_run = dict.fromkeys(BYTES, "equal")
        gaps = "within tolerance" if case == "AdamW" else "not run"
        of_run |= dict.fromkeys(DISTANCES, gaps)
        for rung, verdict in (of_run | verdicts).items():
            gap = 2.5e-7 if verdict == "within tolerance" else None
            rows.append((case, 3, rung, verdict, gap))
    columns = ["case", "world_size", "rung", "verdict", "max_abs_diff"]
    return pd.DataFrame(rows, columns=columns)


MODEL = {"n_layer": 4, "n_embd": 128}
HOSTS = pd.DataFrame(
    [
        (1, 1, None, 9000.4, 8900, 9100, *[None] * 4, "proven", True),
        (1, 2, None, 15000, 14800, 15100, 4.04, 6.26, 6.1, 6.4, "proven", True),
        (2, 2, "unshaped", 14000, 13800, 14100, 4.04, 7.5, 7.3, 7.7, "proven", True),
        (2, 2, "100 Mbit/s", 3500, 3490, 3510, 290.0, 300.0, 299, 301, "proven", True),
    ],
    columns=[
        *("hosts", "processes", "link"),
        *("tokens_per_s", "tokens_per_s_least", "tokens_per_s_most"),
        *("allreduce_expected_ms", "allreduce_ms"),
        *("allreduce_ms_least", "allreduce_ms_most", "verdict", "same_on_one_host"),
    ],
)


def studied(**changes: Any) -> LadderStudy:
    """The ladder of the study, with the current code, model and machine."""
    made = {"table": studied_ladder(), "origin": origin(), "model": MODEL}
    return LadderStudy(**made | {"since": UNCHANGED} | changes)


def hosts(**changes: Any) -> Hosts:
    made = {"table": HOSTS, "origin": origin(), "model": MODEL, "since": UNCHANGED}
    return Hosts(**made | changes)


def origin(**changes: Any) -> dict[str, Any]:
    """The recorded code, model and machine of both studies."""
    return {
        "model": MODEL,
        "train": {"learning_rate": 0.0003},
        # only of the study `network`
        "noise_floor": 0.04,
        "allreduce_noise_floor": 0.02,
        "spread": 0.01,
        "provenance": {"measured_at": "2026-01-01T02:03:04Z", "machine": MACHINE},
    } | changes


def studied_collectives() -> pd.DataFrame:
    """Medians of a sweep on the same machine: a microsecond for each kB, shm half."""
    where = {key: MACHINE[key] for key in ("cpu", "cores", "torch")}
    where |= {"measured_at": "2026-01-01T02:03:04Z"}
    rows = [
        (backend, world_size, size, size / 1e3 * factor)
        for backend, factor in (("gloo", 1.0), ("shm", 0.5))
        for world_size in (2, 4)
        for size in (4, 1_048_576, 4_000_000, 16_777_216)
    ]
    columns = ["backend", "world_size", "num_bytes", "p50_us"]
    return pd.DataFrame(rows, columns=columns).assign(**where)


def bugs() -> dict[str, Any]:
    """The result of the study ``zoo``, with three bugs."""
    keys = ("loss", "check", "caught_by")
    found = {
        "sum_for_mean": (LossCurve.HIDDEN.value, "replay", ["replay"]),
        "other_data": (LossCurve.SHOWS.value, "data", ["data", "replay"]),
        "stops": (LossCurve.STOPS.value, "ranks", []),
    }
    return {
        "bugs": {
            name: {"met_in": "a project #1", **dict(zip(keys, of, strict=True))}
            for name, of in found.items()
        },
        "clean_runs": 2,
        "alarms": 1,
        "provenance": origin()["provenance"],
    }


def on_two_hosts(measured: Facts, run: str) -> Facts:
    """The same facts with ``run`` trained on two hosts."""
    timing = {**measured.timing, run: {**measured.timing[run], "num_hosts": 2}}
    return replace(measured, timing=timing)


def proven(world_sizes: list[int]) -> dict[str, Any]:
    return {f"gloo-{n}": ladder_of(n) | {"verdict": "proven"} for n in world_sizes}


def facts(world_sizes: list[int], **changes: Any) -> Facts:
    """Facts of gloo runs; ``speeds`` (of :func:`arms`) and any field can be given."""
    speeds = changes.pop("speeds", {})
    noise = changes.pop("noise", 0.01)
    runs = {f"gloo-{world_size}": world_size for world_size in world_sizes}
    table = rounds(arms(world_sizes, **speeds), noise=noise)
    steps = np.arange(100)
    fields: dict[str, Any] = {
        "seed": 35000,
        "batch_size": 32,
        "num_samples": 12_078,
        "params_sha256": "cd" * 32,
        "gloo_world_sizes": world_sizes,
        "baseline": baseline_rounds(table, world_sizes, "rounds.csv"),
        "baseline_provenance": provenance_of(1),
        "provenance": {run: provenance_of(size) for run, size in runs.items()},
        "first_texts": {
            run: [f"Rank {rank} <b>reads</b> a | this." for rank in range(size)]
            for run, size in runs.items()
        },
        "equivalence": {run: ladder_of(size) for run, size in runs.items()},
        "timing": {run: timing_of(size) for run, size in runs.items()},
        "account": pd.DataFrame(
            [
                (run, rank, part, mean, mean - 0.5, mean + 0.5)
                for run, size in runs.items()
                for rank in ("all", *(f"rank {number}" for number in range(size)))
                for part, mean in account_of(size).items()
                if part != "step_ms"
            ],
            columns=["run", "rank", "part", "mean_ms", "low_ms", "high_ms"],
        ),
        "losses": {
            run: pd.DataFrame(
                {"step": steps, "loss": 5.5 * np.exp(-steps / 40) + 2e-7 * size}
            )
            for run, size in runs.items()
        },
        "ladder_study": studied(),
        "hosts_study": hosts(),
        "collectives_study": studied_collectives(),
        "bugs": {**bugs(), "since": UNCHANGED},
    }
    return Facts(**fields | changes)


def published(folder: Path, measured: Facts) -> Path:
    write_json(folder / "manifest.json", manifest(measured))
    write_json(folder / "summary.json", summary(measured))
    write_json(folder / "timing.json", dict(measured.timing))
    write_json(folder / "equivalence.json", dict(measured.equivalence))
    measured.scaling.to_csv(folder / "scaling.csv", index=False)
    measured.account.to_csv(folder / "account.csv", index=False)
    losses = pd.concat(table.assign(run=run) for run, table in measured.losses.items())
    losses[["run", "step", "loss"]].to_csv(folder / "losses.csv", index=False)
    return folder
