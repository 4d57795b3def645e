"""Results of studies, which the report shows if what produced them is what is here."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from minitrain.analysis.busy import why_busy

Json = Mapping[str, Any]
# what bits and roundings depend on
MACHINE = ("cpu", "cores", "torch")

# the byte checks of studies/ladder, and the names of their columns
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


class Origin(StrEnum):
    """What is different where a study was measured."""

    UNRECORDED = "unrecorded"
    CODE = "code"
    MODEL = "model"
    MACHINE = "machine"


@dataclass(frozen=True)
class Foreign:
    """Why a study does not apply: ``key`` is ``there`` in the study, ``here`` now."""

    what: Origin
    key: str = ""
    there: Any = None
    here: Any = None


@dataclass(frozen=True)
class Studied:
    """``table``, and its ``origin``: ``provenance``, the sections ``model`` and
    ``train`` of params.yaml, and ``train_code_sha256``, the code of the stage
    ``train``; null if not recorded. ``model`` is what params.yaml has now.
    """

    table: pd.DataFrame
    origin: Json
    model: Json

    def foreign(self, run: Json) -> Foreign | None:
        """Return why the table does not apply to ``run`` (its provenance), or None."""
        made, code = self.origin["provenance"], self.origin.get("train_code_sha256")
        if made is None or self.origin["model"] is None or code is None:
            return Foreign(Origin.UNRECORDED)
        if code != run.get("code_sha256"):
            return Foreign(Origin.CODE)
        there, here = (
            {key: of["machine"][key] for key in MACHINE} for of in (made, run)
        )
        other_model = _difference(Origin.MODEL, self.origin["model"], self.model)
        return other_model or _difference(Origin.MACHINE, there, here)


def _difference(what: Origin, there: Json, here: Json) -> Foreign | None:
    for key in {**there, **here}:
        then, now = there.get(key), here.get(key)
        if then != now:
            return Foreign(what, key, then, now)
    return None


@dataclass(frozen=True)
class Ladder:
    """The study of more processes, other optimizers and other number types."""

    studied: Studied

    @property
    def num_equal(self) -> int:
        """Byte comparisons that are equal."""
        return int((self._bytes["verdict"] == "equal").sum())

    @property
    def num_bytes(self) -> int:
        """All byte comparisons."""
        return len(self._bytes)

    @property
    def num_breaches(self) -> int:
        """Checks that breached."""
        return int((self.studied.table["verdict"] == "breach").sum())

    @property
    def _bytes(self) -> pd.DataFrame:
        table = self.studied.table
        return table[table["rung"].isin(BYTES)]

    def rows(self) -> Iterator[list[Any]]:
        """Yield a row for each case: its names, then verdict or distance of each check
        in the order of BYTES and DISTANCES.
        """
        table = self.studied.table
        for case, of_case in table.groupby(["case", "world_size"], sort=False):
            by_name = of_case.set_index("rung")
            cells = []
            for name in (*BYTES, *DISTANCES):
                verdict = str(by_name.at[name, "verdict"])
                distance = float(by_name["max_abs_diff"][name])
                within = verdict == "within tolerance"
                cells.append(f"{distance:.1e}" if within else verdict)
            yield [*case, *cells]


@dataclass(frozen=True)
class Hosts:
    """The study of two hosts: rates of links, expected and measured all-reduces."""

    studied: Studied

    @cached_property
    def busy(self) -> str | None:
        """Reason why the machine was too busy to compare speeds, or None."""
        load = self.studied.origin["provenance"].get("load")
        return why_busy(load, self.studied.origin.get("spread", 0.0))

    @property
    def is_judged(self) -> bool:
        """Whether speeds can be compared."""
        return not self.busy and "noise_floor" in self.studied.origin

    @property
    def noise_floor(self) -> float:
        """Largest relative difference between identical arms."""
        return float(self.studied.origin["noise_floor"])

    @property
    def allreduce_noise_floor(self) -> float:
        """The same for their all-reduces."""
        return float(self.studied.origin["allreduce_noise_floor"])

    @cached_property
    def far(self) -> pd.DataFrame:
        """Rows of more than one host."""
        return self.studied.table[self.studied.table["hosts"] > 1]

    @property
    def num_same(self) -> int:
        """Links whose runs have the bits of one host."""
        return int(self.far["same_on_one_host"].sum())

    @property
    def slowest(self) -> dict[Any, Any]:
        """The row of the slowest link."""
        return self.far.sort_values("tokens_per_s").to_dict("records")[0]

    @property
    def fastest(self) -> dict[Any, Any]:
        """The row of the fastest link."""
        return self.far.sort_values("tokens_per_s").to_dict("records")[-1]

    @property
    def kept(self) -> float:
        """Speed over the slowest link as a share of the speed over the fastest."""
        return float(self.slowest["tokens_per_s"] / self.fastest["tokens_per_s"])

    @property
    def links_differ(self) -> bool:
        """Whether the slowest link is slower beyond the noise floor, in all rounds."""
        overlap = (
            self.slowest["tokens_per_s_most"] >= self.fastest["tokens_per_s_least"]
        )
        return 1 / self.kept - 1 > self.noise_floor and not overlap

    def rows(self) -> list[dict[Any, Any]]:
        """Return a row for each setting, with ``expectation``: whether the measured
        all-reduces are those of the cost model.
        """
        rows = self.studied.table.to_dict("records")
        return [{**row, "expectation": self._expectation(row)} for row in rows]

    def _expectation(self, row: Mapping[Any, Any]) -> str | None:
        expected, measured = row["allreduce_expected_ms"], row["allreduce_ms"]
        if not self.is_judged or pd.isna(expected) or row["processes"] == 1:
            return None
        apart = max(expected / measured, measured / expected) - 1
        if apart <= self.allreduce_noise_floor:
            return "as expected"
        # rounds on both sides of it confirm nothing
        around = row["allreduce_ms_least"] <= expected <= row["allreduce_ms_most"]
        return "not told apart" if around else "unexpected"


# how many times the payload another payload may be to be comparable
NEAR = 2
# strategies that send every gradient once, in float32
WHOLE = ("ddp", "flat")


def bare_allreduce(
    sweep: pd.DataFrame, machine: Json, world_size: int, num_bytes: int
) -> Json | None:
    """Return the row of an all-reduce of about ``num_bytes`` alone over gloo, as the
    study ``collectives`` measured it on this kind of machine, or None.
    """
    mine = sweep.query("backend == 'gloo' and world_size == @world_size")
    for key in MACHINE:
        mine = mine[mine[key] == machine[key]]
    # a figure without provenance is not quoted
    if not {"measured_at", "code_sha256"} <= {*sweep} or mine.empty:
        return None
    apart = [abs(math.log(size / num_bytes)) for size in mine["num_bytes"]]
    if min(apart) > math.log(NEAR):
        return None
    return dict(mine.iloc[apart.index(min(apart))])


class LossCurve(StrEnum):
    """What the losses of a run with an injected bug look like."""

    HIDDEN = "looks right"
    SHOWS = "looks wrong"
    STOPS = "training stops"


def digest(zoo: Json) -> dict[str, Any]:
    """Return the few facts of studies/zoo/zoo.json that the report shows."""
    bugs = {
        name: {
            "met_in": bug["met_in"],
            "check": bug["check"],
            "caught_by": [rung for rung, v in bug["verdicts"].items() if v == "breach"],
            "loss": loss_curve(bug["losses"], zoo["clean_losses"][bug["model"]]),
        }
        for name, bug in zoo["bugs"].items()
    }
    alarms = sum(bool(run["breaches"]) for run in zoo["clean"])
    made = ("measured_at", "git_commit", "code_sha256", "machine")
    return {
        "bugs": bugs,
        "clean_runs": len(zoo["clean"]),
        "alarms": alarms,
        "provenance": {key: zoo[key] for key in made},
    }


def loss_curve(mine: Sequence[float], clean: Sequence[Sequence[float]]) -> LossCurve:
    """Return what the losses of a run with a bug look like beside clean runs.

    ``clean`` has one run for each seed; the first has the seed of the run. A curve
    looks right if its distance to that one over the last quarter of the steps is at
    most the spread of the seeds.
    """
    curves, own = np.array(clean), np.array(mine)
    if len(own) < curves.shape[1]:
        return LossCurve.STOPS
    last = slice(-(len(own) // 4), None)
    distance = np.sqrt(np.mean((own - curves[0])[last] ** 2))
    spread = np.sqrt(np.mean(curves.var(0, ddof=1)[last]))
    return LossCurve.HIDDEN if distance <= spread else LossCurve.SHOWS
