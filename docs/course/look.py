"""What the exercises compare, of every run: verdict, bits, data, loss, gap, messages.

    .venv/bin/python docs/course/look.py

Reads data/ and metrics/ of the folder that it is called in. The messages are counted in
a step that it makes itself, once the ranks have made twelve others.
"""

import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

from minitrain import launch
from minitrain.core.errors import run_stage
from minitrain.core.files import read_json, read_jsonl
from minitrain.core.params import Params, load_params

DIGITS = 12
Quantities = dict[str, dict[str, Any]]


def main() -> None:
    print("counting the messages of a step ...", file=sys.stderr)
    found = look(Path())
    rows = [name for name in next(iter(found.values())) if "rung" not in name]
    width = 2 + max(map(len, rows))
    print(" " * width, *(f"{run:<16}" for run in found))
    for name in rows:
        cells = (f"{written(found[run][name]):<16}" for run in found)
        print(f"{name:<{width}}", *cells)


def written(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else value


def look(folder: Path, count: bool = True) -> Quantities:
    """Of every run in the project ``folder``: quantity -> value, and for each rung of
    the ladder, ``rung NAME`` -> its verdict. None: undefined, or not counted.
    """
    params = load_params(folder / "params.yaml")
    ladders = read_json(folder / "metrics/equivalence.json", *params.runs())
    return {
        run: {
            **of_ladder(ladders[run]),
            **of_data(folder / "data", run, world_size),
            **(messages(params, folder, world_size) if count else {}),
        }
        for run, world_size in params.runs().items()
    }


def of_ladder(ladder: dict[str, Any]) -> dict[str, Any]:
    rungs = {name: rung for name, rung in ladder.items() if isinstance(rung, dict)}
    return {
        "verdict": ladder["verdict"],
        "state": ladder["state_sha256"][0][:DIGITS],
        "gap": rungs["one_process"]["max_abs_diff"],
        **{f"rung {name}": rung["verdict"] for name, rung in rungs.items()},
    }


def of_data(data: Path, run: str, world_size: int) -> dict[str, Any]:
    """The last loss; hashes of all texts, and of the batches that were made of them."""
    losses = (data / "runs" / run / "losses.csv").read_text().split()
    rows = read_jsonl(data / "runs" / run / "hashes.jsonl")
    batches = "".join(row["sha256"] for row in rows if row["kind"] == "batch")
    index = read_json(data / f"shards/world-{world_size}/index.json", "samples_sha256")
    return {
        "loss": float(losses[-1].split(",")[1]),
        "samples": index["samples_sha256"][:DIGITS],
        "batches": sha256(batches.encode()).hexdigest()[:DIGITS],
    }


def messages(params: Params, folder: Path, world_size: int) -> dict[str, int]:
    """How often rank 0 calls a collective in a step, and with how many bytes."""
    # it needs torch
    from minitrain.bench.ledger import count_step

    (counted, _), *_ = launch(count_step, world_size, params, folder / "data/shards")
    return {
        "calls a step": sum(calls for calls, _ in counted.values()),
        "bytes a step": sum(size for _, size in counted.values()),
    }


if __name__ == "__main__":
    run_stage(main)
