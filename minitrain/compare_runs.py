"""Two training runs on disk: the first step and tensor that differ, and why.

What is there is what the runs recorded: hashes at some steps, and the gradients of the
first. Runs of unlike world sizes are compared by the steps and ranks that both have.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minitrain.errors import UserError
from minitrain.files import read_jsonl
from minitrain.hashes import load_tensors
from minitrain.locator import UNKNOWN, Divergence, What, cause_of_pair, locate

Row = Mapping[str, Any]
HASHES = "hashes.jsonl"
GRADIENTS = "gradients.pt"


def compare_runs(a: Path, b: Path) -> Divergence | None:
    """The first difference of run ``a`` from run ``b``; None where none is recorded.

    Raises UserError for a folder without readable hashes, and for runs that have no
    recorded step in common.
    """
    rows_a, rows_b = (_read(folder) for folder in (a, b))
    shared = _keys(rows_a) & _keys(rows_b)
    if not any(kind == "tensors" for kind, _, _ in shared):
        raise UserError(f"{a}: has no recorded step in common with {b}")
    ours, theirs = (
        [row for row in rows if _key(row) in shared] for rows in (rows_a, rows_b)
    )
    world_size = 1 + max(row["rank"] for row in rows_a if row["kind"] == "tensors")

    def explain(step: int, what: What, ranks: list[int]) -> str:
        kept = [folder / GRADIENTS for folder in (a, b)]
        if what != "gradients" or step != 0 or not all(map(Path.exists, kept)):
            return UNKNOWN
        gradients = [load_tensors(path) for path in kept]
        return cause_of_pair(gradients[0], gradients[1], ranks, world_size)

    return locate(ours, theirs, explain)


def _read(folder: Path) -> list[dict[str, Any]]:
    path = folder / HASHES
    try:
        rows = read_jsonl(path)
        # what the comparison will look up
        _keys(rows)
    except FileNotFoundError:
        raise UserError(f"{folder}: is no training run, it has no {HASHES}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not the hashes of a run: {error}") from None
    return rows


def _keys(rows: list[dict[str, Any]]) -> set[tuple[str, int, int]]:
    kinds = ("batch", "tensors")
    return {_key(row) for row in rows if row["kind"] in kinds}


def _key(row: Row) -> tuple[str, int, int]:
    return row["kind"], row.get("step", -1), row.get("rank", -1)
