"""What a study measured at another time, which the report shows only where what made it
is what is here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from minitrain.core.provenance import measured_where

# what its bits and its roundings depend on
MACHINE = ("cpu", "cores", "torch")


@dataclass(frozen=True)
class Studied:
    """``table``, and its ``origin``: ``provenance``, the sections ``model`` and
    ``train`` of params.yaml, and ``train_code_sha256``, the code of the stage
    ``train``; null where nobody recorded it. ``model`` is what params say now.
    """

    table: pd.DataFrame
    origin: Mapping[str, Any]
    model: Mapping[str, Any]

    def foreign(self, run: Mapping[str, Any]) -> str | None:
        """Why the table does not speak of what made ``run``, by its provenance; None
        where it does.
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


def _another(
    name: str, there: Mapping[str, Any], here: Mapping[str, Any]
) -> str | None:
    for key in {**there, **here}:
        then, now = there.get(key), here.get(key)
        if then != now:
            return f"another {name} made its result ({key}: {then!r}, here {now!r})"
    return None


def made_by(studied: Studied) -> Iterator[str]:
    """Sentences: when, on what, by which code, and what was trained."""
    made = studied.origin["provenance"]
    yield measured_where(made)
    yield f"Code {made['code_sha256'][:12]}."
    for section in ("model", "train"):
        values = studied.origin[section].items()
        yield f"{section}: {', '.join(f'{key} {value}' for key, value in values)}."
