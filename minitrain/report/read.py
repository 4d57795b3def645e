"""Reading and validation of the results of stages and studies."""

from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from minitrain.analysis.account import ALL_RANKS, PARTS
from minitrain.analysis.comparison import baseline_rounds
from minitrain.core.files import read_csv, read_json, reading, sha256_file
from minitrain.core.params import Params
from minitrain.data.shards import first_texts
from minitrain.report.facts import Facts
from minitrain.report.study_results import Hosts, LadderStudy, since_then


def read_facts(root: Path, params: Params, equivalence: dict[str, Any]) -> Facts:
    """Read the results of the runs in ``params`` in the project ``root``; files of
    other runs are ignored. ``equivalence`` is the content of metrics/equivalence.json.
    Raises UserError if a file is missing, damaged or incomplete.
    """
    runs, metrics, data = params.runs(), root / "metrics", root / "data"
    baseline, shards = data / "baseline", data / "shards"
    rounds = baseline / "rounds.csv"
    folders = {run: data / "runs" / run for run in runs}
    bugs = read_json(metrics / "zoo.json", "bugs", "provenance")
    index = shards / f"world-{max(params.gloo.world_sizes)}" / "index.json"
    needed = ("sync", "world_size", "code_sha256", "gradient_bytes")
    origins = {
        run: read_json(folder / "provenance.json", "machine", "num_steps", *needed)
        for run, folder in folders.items()
    }
    timed = ("account", "stragglers", "ddp_says", "num_hosts", "machine_busy")
    timing = read_runs(metrics / "timing.json", params, *timed)
    with reading(metrics / "timing.json"):
        for of in timing.values():
            of["account"]["step_ms"]
    parts = [
        (run, rank, part)
        for run, world_size in runs.items()
        for rank in (ALL_RANKS, *(f"rank {number}" for number in range(world_size)))
        for part in PARTS
        if part in timing[run]["account"]
    ]
    return Facts(
        seed=params.train.seed,
        batch_size=params.train.global_batch_size,
        num_samples=read_json(index, "samples")["samples"],
        params_sha256=sha256_file(root / "params.yaml"),
        gloo_world_sizes=params.gloo.world_sizes,
        baseline=baseline_rounds(
            _rounds(rounds, params.baseline.num_rounds),
            params.gloo.world_sizes,
            str(rounds),
        ),
        baseline_provenance=read_json(
            baseline / "provenance.json", "machine", "code_sha256"
        ),
        provenance=origins,
        first_texts={
            run: first_texts(shards / f"world-{world_size}")
            for run, world_size in runs.items()
        },
        equivalence=equivalence,
        timing=timing,
        account=_account(metrics / "account.csv", parts),
        losses={run: _losses(folders[run], origins[run]["num_steps"]) for run in runs},
        ladder_study=LadderStudy(*_studied(metrics / "ladder", params, root)),
        hosts_study=Hosts(*_studied(metrics / "hosts", params, root)),
        collectives_study=read_csv(metrics / "collectives.csv"),
        bugs={**bugs, "since": since_then(root, bugs["provenance"])},
    )


def _studied(
    stem: Path, params: Params, root: Path
) -> tuple[pd.DataFrame, Any, dict[str, Any], str]:
    origin = read_json(stem.with_suffix(".json"), "provenance", "model")
    since = since_then(root, origin["provenance"])
    model = params.model.model_dump(mode="json")
    return read_csv(stem.with_suffix(".csv")), origin, model, since


def _rounds(file: Path, num_rounds: int) -> pd.DataFrame:
    table = read_csv(file, "round")
    with reading(file):
        if {*table["round"]} != {*range(num_rounds)}:
            raise ValueError(f"not {num_rounds} rounds")
    return table


def _account(file: Path, expected: list[tuple[str, str, str]]) -> pd.DataFrame:
    keys = ["run", "rank", "part"]
    table = read_csv(file, *keys, "mean_ms", "low_ms", "high_ms")
    with reading(file):
        held = {*table[keys].itertuples(index=False, name=None)}
        if missing := [one for one in expected if one not in held]:
            raise ValueError(f"no row of {', '.join(missing[0])}")
    return table


def _losses(folder: Path, num_steps: int) -> pd.DataFrame:
    file = folder / "losses.csv"
    table = read_csv(file, "step", "loss")
    with reading(file):
        if [*table["step"]] != [*range(num_steps)]:
            raise ValueError(f"not one row for each of {num_steps} steps")
    return table


def read_runs(file: Path, params: Params, *keys: str) -> dict[str, Any]:
    """Return the entries of a JSON file for the runs of ``params``. Raises UserError if
    a run is missing, or one of its ``keys``.
    """
    runs = [*params.runs()]
    found = read_json(file, *runs)
    with reading(file):
        for run, key in product(runs, keys):
            found[run][key]
    return {run: found[run] for run in runs}
