"""The ladder of the study: more world sizes, optimizers and number types.

It was climbed at another time, so it is shown only where what made it is what is here.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from minitrain.core.files import read_json, sha256_file
from minitrain.core.params import Model
from minitrain.core.provenance import code_sha256, measured_where
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


# what its bits and its roundings depend on
MACHINE = ("cpu", "cores", "torch")


@dataclass(frozen=True)
class Studied:
    """``rungs``, a row each, and what made them: the sections ``model`` and ``train``
    of params.yaml and ``provenance``, each None where nobody recorded it; ``model`` and
    ``code`` (its hash) are those that are here now.
    """

    rungs: pd.DataFrame
    origin: Mapping[str, Any]
    model: Mapping[str, Any]
    code: str | None

    def foreign(self, machine: Mapping[str, Any]) -> str | None:
        """Why the rungs do not speak of what is here; None where they do."""
        made = self.origin["provenance"]
        if made is None or self.origin["model"] is None or made["code_sha256"] is None:
            return "nobody recorded what made its result"
        if made["code_sha256"] != self.code:
            return "other code made its result"
        there, here = (
            {key: of[key] for key in MACHINE} for of in (made["machine"], machine)
        )
        other_model = _another("model", self.origin["model"], self.model)
        return other_model or _another("machine", there, here)


def read_studied(folder: Path, model: Model, script: Path) -> Studied:
    """What the study left in ``folder``, beside ``model`` and ``script`` of today."""
    return Studied(
        rungs=pd.read_csv(folder / "ladder.csv"),
        origin=read_json(folder / "ladder.json"),
        model=model.model_dump(mode="json") | {"sha256": sha256_file(Path(model.file))},
        code=code_sha256(script),
    )


def studied_ladder(studied: Studied, machine: Mapping[str, Any]) -> list[Block]:
    """The section; where it would be foreign to ``machine``, a line that says so."""
    if why := studied.foreign(machine):
        return [
            Paragraph(
                "More processes, other optimizers and number types are left out: "
                f"{why}. make study-ladder climbs that ladder, make then shows it."
            )
        ]
    return [
        Heading("And with more processes, other optimizers, other numbers?"),
        *_section(studied.rungs),
        Paragraph(" ".join(_made_by(studied))),
    ]


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


def _section(rungs: pd.DataFrame) -> list[Block]:
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
