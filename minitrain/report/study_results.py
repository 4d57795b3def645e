"""Results of studies, shown if model and machine are the same as in the report."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from minitrain.analysis.busy import why_busy
from minitrain.core.code_lock import changed_since
from minitrain.report.checks import MARKS

Json = Mapping[str, Any]
# facts about the machine that determine bits and rounding
MACHINE = ("cpu", "cores", "torch")
# number of changed files to name
NAMED = 3

# the byte checks of studies/ladder, and the titles of their columns
BYTES = {
    "ranks": "ranks",
    "data": "data",
    "replay_gradients": "gradients",
    "replay_parameters": "parameters",
    "replay": "final state",
    "again": "run again",
}
DISTANCES = {
    "one_process_gradients": "gradients",
    "one_process_early": "after three steps",
    "one_process": "at the end",
}


class Mismatch(NamedTuple):
    """First difference of a study (``there``) and a run (``here``); None: unknown."""

    key: str
    there: Any
    here: Any


@dataclass(frozen=True)
class Studied:
    """Result of a study.

    ``origin`` has its ``provenance`` and the sections ``model`` and ``train`` of
    params.yaml. ``model`` is the current section, ``since`` a sentence on later changes
    of the study's code (:func:`since_then`).
    """

    table: pd.DataFrame
    origin: Json
    model: Json
    since: str

    def mismatch(self, run: Json) -> Mismatch | None:
        """Return the first setting that differs from ``run``, a provenance, or None."""
        there = self.origin["model"] | self.origin["provenance"]["machine"]
        here = {**self.model, **run["machine"]}
        for key in (*{**self.origin["model"], **self.model}, *MACHINE):
            if there.get(key) != here.get(key):
                return Mismatch(key, there.get(key), here.get(key))
        return None


def since_then(root: Path, origin: Json) -> str:
    """Return a sentence that counts the files of a measurement's code that have changed
    since (or none); ``origin`` is its provenance, ``root`` the folder of the project.
    """
    code = origin.get("code")
    if not code:
        return "The code that measured it was not recorded."
    try:
        changed = changed_since(root, code)
    except (SyntaxError, ValueError):
        return "A file of the code that measured it cannot be parsed."
    if not changed:
        return f"None of its {len(code)} measured files has changed since."
    names = ", ".join(changed[:NAMED])
    more = f" and {len(changed) - NAMED} more" if len(changed) > NAMED else ""
    count = f"{len(changed)} of {len(code)} measured files"
    return f"Since then {count} changed: {names}{more}."


@dataclass(frozen=True)
class LadderStudy(Studied):
    """Study of the checks (the ladder) with more processes, optimizers and dtypes."""

    @property
    def byte_verdicts(self) -> list[str]:
        """Verdicts of the checks that compare bytes, in all cases."""
        return self.table["verdict"][self.table["rung"].isin(BYTES)].to_list()

    @property
    def num_breaches(self) -> int:
        """Number of checks that failed."""
        return int((self.table["verdict"] == "breach").sum())

    def rows(self) -> Iterator[list[Any]]:
        """Yield a row for each case: name, world size, then the symbol, verdict or
        distance of each check in the order of BYTES and DISTANCES.
        """
        words = {verdict: str(MARKS[verdict]) for verdict in ("equal", "not run")}
        for case, of_case in self.table.groupby(["case", "world_size"], sort=False):
            checks = of_case.set_index("rung").loc[[*BYTES, *DISTANCES]]
            pairs = zip(checks["verdict"], checks["max_abs_diff"], strict=True)
            yield [
                *case,
                *(
                    f"{distance:.1e}" if v == "within tolerance" else words.get(v, v)
                    for v, distance in pairs
                ),
            ]


@dataclass(frozen=True)
class Hosts(Studied):
    """Results of the study of two hosts: rates of links, times of all-reduces."""

    @cached_property
    def busy(self) -> str | None:
        """Reason why the machine was too busy to compare speeds, or None."""
        return why_busy(self.origin["provenance"].get("load"), self.origin["spread"])

    @cached_property
    def links(self) -> list[dict[Any, Any]]:
        """Rows with more than one host, the slowest first."""
        far = self.table[self.table["hosts"] > 1].sort_values("tokens_per_s")
        return far.to_dict("records")

    @property
    def kept(self) -> float:
        """Speed over the slowest link, divided by the speed over the fastest."""
        return float(self.links[0]["tokens_per_s"] / self.links[-1]["tokens_per_s"])

    @property
    def links_differ(self) -> bool:
        """True if the slowest link is slower in all rounds, beyond the noise floor."""
        slowest, fastest = self.links[0], self.links[-1]
        overlap = slowest["tokens_per_s_most"] >= fastest["tokens_per_s_least"]
        return 1 / self.kept - 1 > self.origin["noise_floor"] and not overlap

    def rows(self) -> list[dict[Any, Any]]:
        """Return the rows as dictionaries with an ``expectation``: how the measured
        all-reduce compares with the cost model, None if unknown.
        """
        rows = self.table.astype(object).where(self.table.notna(), None)
        return [
            {**row, "expectation": self._expectation(row)}
            for row in rows.to_dict("records")
        ]

    def _expectation(self, row: Mapping[Any, Any]) -> str | None:
        expected, measured = row["allreduce_expected_ms"], row["allreduce_ms"]
        if self.busy or expected is None or row["processes"] == 1:
            return None
        apart = max(expected / measured, measured / expected) - 1
        if apart <= self.origin["allreduce_noise_floor"]:
            return "as expected"
        # rounds on both sides of the expectation
        if row["allreduce_ms_least"] <= expected <= row["allreduce_ms_most"]:
            return "inconclusive"
        return "unexpected"


# largest ratio of payloads that are comparable
NEAR = 2
# strategies that send every gradient once, as it is
WHOLE = ("ddp", "flat")


def bare_allreduce(
    sweep: pd.DataFrame, machine: Json, world_size: int, num_bytes: int
) -> Json | None:
    """Return the row in study ``collectives`` of an isolated gloo all-reduce of
    ``num_bytes`` (up to a factor of ``NEAR``) on an equal ``machine``, or None.
    """
    mine = sweep.query("backend == 'gloo' and world_size == @world_size")
    mine = mine[(mine[[*MACHINE]] == [machine[key] for key in MACHINE]).all(axis=1)]
    apart = np.log(mine["num_bytes"] / num_bytes).abs()
    is_near = not mine.empty and apart.min() <= math.log(NEAR)
    return dict(mine.loc[apart.idxmin()]) if is_near else None
