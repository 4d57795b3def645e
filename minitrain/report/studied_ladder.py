"""The ladder of the study: more world sizes, optimizers and number types."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from minitrain.report.numbers import plural
from minitrain.report.render import table
from minitrain.report.studied import Studied, made_by

# in the order of the columns, what the study calls each byte rung, and what we do
BYTES = {
    "ranks": "ranks",
    "data": "data",
    "replay_gradients": "gradients",
    "replay_parameters": "parameters",
    "replay": "final state",
    "again": "run again",
}
GAPS = {
    "one_process_gradients": "gradients",
    "one_process_early": "after three steps",
    "one_process": "at the end",
}
MARKS = {"equal": "=", "not run": "-", "breach": "BREACH", "undecided": "undecided"}


def studied_ladder(studied: Studied, run: Mapping[str, Any]) -> dict[str, Any]:
    """What the section says beside ``run``, or ``foreign``: why there is none."""
    if why := studied.foreign(run):
        return {"foreign": why}
    rungs = studied.table
    breaches = int((rungs["verdict"] == "breach").sum())
    byte_rungs = rungs[rungs["rung"].isin(BYTES)]
    equal = int((byte_rungs["verdict"] == "equal").sum())
    bits = [f"bits: {name}" for name in BYTES.values()]
    gaps = [f"from one process: {name}" for name in GAPS.values()]
    rows = [
        [*of, *_cells(of_run)]
        for of, of_run in rungs.groupby(["case", "world_size"], sort=False)
    ]
    return {
        "foreign": None,
        "outcome": (
            f"{equal} of {plural(len(byte_rungs), 'comparison')} of bits are equal, "
            f"and {plural(breaches, 'rung') if breaches else 'nothing'} breached."
        ),
        "table": table(["what", "processes", *bits, *gaps], rows),
        "made_by": " ".join(made_by(studied)),
    }


def _cells(of_run: pd.DataFrame) -> Iterable[str]:
    by_name = of_run.set_index("rung")
    for name in (*BYTES, *GAPS):
        verdict = str(by_name.at[name, "verdict"])
        if verdict == "within tolerance":
            yield f"{by_name['max_abs_diff'][name]:.1e}"
        else:
            yield MARKS.get(verdict, verdict)
