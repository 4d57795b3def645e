"""What the exercises compare, of every run: verdict, bits, data, loss, gap, messages,
and the ladder as the report has it, each rung with the key that metrics/ and error
lines call it by.

    .venv/bin/python docs/course/look.py

Reads data/ and metrics/ of the folder that it is called in. The messages are counted in
a step that it makes itself, once the ranks have made twelve others.
"""

import shutil
import sys
import textwrap
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from minitrain import launch
from minitrain.core.errors import run_stage
from minitrain.core.files import read_json, read_jsonl
from minitrain.core.params import Params, load_params

DIGITS = 12
WIDTH = 16
RUNG, NOT_RUN = "rung ", {"verdict": "not run"}
Quantities = dict[str, dict[str, Any]]


def main() -> None:
    print("counting the messages of a step ...", file=sys.stderr)
    found = look(Path())
    ladders = read_json(Path("metrics/equivalence.json"), *found)
    print(*quantities(found), "", *rungs(ladders), sep="\n")


def quantities(found: Quantities) -> Iterator[str]:
    """A line for each quantity, a column for each run."""
    rows = [name for name in next(iter(found.values())) if not name.startswith(RUNG)]
    yield line("", *found)
    for name in rows:
        yield line(name, *(written(told[name]) for told in found.values()))


def rungs(ladders: dict[str, Any]) -> Iterator[str]:
    """What came of each rung in each run, its key, and the report's words for it."""
    # the report takes a moment to import: not for those who want look() alone
    from minitrain.report.checks import NOT_RUN, in_words, outcomes_of

    found = {run: outcomes_of(ladder) for run, ladder in ladders.items()}
    columns = shutil.get_terminal_size().columns
    indent = " " * (WIDTH + 1) * len(found)
    yield line(*found, "rung: what it compares")
    for name in dict.fromkeys(name for ladder in found.values() for name in ladder):
        came = (ladder.get(name, NOT_RUN) for ladder in found.values())
        text = line(*came, in_words(name))
        yield textwrap.fill(text, columns, subsequent_indent=indent)


def line(*cells: object) -> str:
    return " ".join(f"{cell!s:<{WIDTH}}" for cell in cells).rstrip()


def written(value: Any) -> str:
    # a float32 has no more digits than these
    if isinstance(value, float):
        return f"{value:.9g}"
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


def messages(params: Params, folder: Path, world_size: int) -> dict[str, int | None]:
    """How often rank 0 calls a collective in a step, and with how many bytes; None of
    one process, which sends nothing even if DDP calls a collective.
    """
    if world_size == 1:
        return {"calls a step": None, "bytes a step": None}
    # it needs torch
    from minitrain.bench.ledger import count_step

    (counted, _), *_ = launch(count_step, world_size, params, folder / "data/shards")
    return {
        "calls a step": sum(calls for calls, _ in counted.values()),
        "bytes a step": sum(size for _, size in counted.values()),
    }


if __name__ == "__main__":
    run_stage(main)
