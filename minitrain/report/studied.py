"""The ladder of the study: more world sizes, optimizers and number types.

It was climbed at another time, so it is shown only where what made it is what is here.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from minitrain.core.provenance import measured_where
from minitrain.report.numbers import plural
from minitrain.report.render import table

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


# what its bits and its roundings depend on
MACHINE = ("cpu", "cores", "torch")


@dataclass(frozen=True)
class Studied:
    """``rungs``, a row each, and their ``origin``: ``provenance``, the sections
    ``model`` and ``train`` of params.yaml, and ``train_code_sha256``, the code of the
    stage ``train``; null where nobody recorded it. ``model`` is what params say now.
    """

    rungs: pd.DataFrame
    origin: Mapping[str, Any]
    model: Mapping[str, Any]

    def foreign(self, run: Mapping[str, Any]) -> str | None:
        """Why the rungs do not speak of what made ``run``, by its provenance; None
        where they do.
        """
        made, code = self.origin["provenance"], self.origin.get("train_code_sha256")
        if made is None or self.origin["model"] is None or code is None:
            return "nobody recorded what made its result"
        if code != run.get("code_sha256"):
            return "other code made its result"
        there, here = (
            {key: of["machine"][key] for key in MACHINE} for of in (made, run)
        )
        other_model = _another("model", self.origin["model"], self.model)
        return other_model or _another("machine", there, here)


def studied_ladder(studied: Studied, run: Mapping[str, Any]) -> dict[str, Any]:
    """What the section says beside ``run``, or ``foreign``: why there is none."""
    if why := studied.foreign(run):
        return {"foreign": why}
    rungs = studied.rungs
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
        "made_by": " ".join(_made_by(studied)),
    }


def _another(
    name: str, there: Mapping[str, Any], here: Mapping[str, Any]
) -> str | None:
    for key in {**there, **here}:
        then, now = there.get(key), here.get(key)
        if then != now:
            return f"another {name} made its result ({key}: {then!r}, here {now!r})"
    return None


def _made_by(studied: Studied) -> Iterator[str]:
    made = studied.origin["provenance"]
    yield measured_where(made)
    yield f"Code {made['code_sha256'][:12]}."
    for section in ("model", "train"):
        values = studied.origin[section].items()
        yield f"{section}: {', '.join(f'{key} {value}' for key, value in values)}."


def _cells(of_run: pd.DataFrame) -> Iterable[str]:
    by_name = of_run.set_index("rung")
    for name in (*BYTES, *GAPS):
        verdict = str(by_name.at[name, "verdict"])
        if verdict == "within tolerance":
            yield f"{by_name['max_abs_diff'][name]:.1e}"
        else:
            yield MARKS.get(verdict, verdict)
