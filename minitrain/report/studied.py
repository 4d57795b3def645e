"""The ladder of the study: more world sizes, optimizers and number types."""

from collections.abc import Iterable

import pandas as pd

from minitrain.report.blocks import Block, Heading, Paragraph, Table
from minitrain.report.numbers import plural

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


def studied_ladder(rungs: pd.DataFrame) -> list[Block]:
    """The section; ``rungs`` has the columns of metrics/ladder.csv, a row each."""
    rows = [
        [*map(str, run), *_cells(of_run)]
        for run, of_run in rungs.groupby(["case", "world_size"], sort=False)
    ]
    breaches = int((rungs["verdict"] == "breach").sum())
    byte_rungs = rungs[rungs["rung"].isin(BYTES)]
    equal = int((byte_rungs["verdict"] == "equal").sum())
    outcome = (
        f"{equal} of {plural(len(byte_rungs), 'comparison')} of bits are equal, and "
        f"{plural(breaches, 'rung') if breaches else 'nothing'} breached."
    )
    bits = [f"bits: {name}" for name in BYTES.values()]
    gaps = [f"from one process: {name}" for name in GAPS.values()]
    return [
        Heading("And with more processes, other optimizers, other numbers?"),
        Paragraph(
            f"The study studies/ladder trained the same model otherwise: {outcome} "
            "An equals sign means equal to the last bit; a number is the largest "
            "difference from one process that computes the whole batch at once."
        ),
        Table(["what", "processes", *bits, *gaps], rows),
    ]


def _cells(of_run: pd.DataFrame) -> Iterable[str]:
    by_name = of_run.set_index("rung")
    for name in (*BYTES, *GAPS):
        verdict = str(by_name.at[name, "verdict"])
        if verdict == "within tolerance":
            yield f"{by_name['max_abs_diff'][name]:.1e}"
        else:
            yield MARKS.get(verdict, verdict)
