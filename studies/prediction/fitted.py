"""Medians of the measurements, and the fitted model read from its file."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from cost_model import Compute, Machine, Overheads
from fit_costs import Measured
from fit_links import Reduction
from link_model import Link, Network
from setting import NO_SYNC, Setting, name_of

PARTS = ("data_s", "forward_s", "backward_s", "optimizer_s")


def measured(
    turns: pd.DataFrame, settings: Sequence[Setting], steps: int
) -> list[Measured]:
    """Return the median step over the rounds of ``turns``, each of that many ``steps``;
    settings that were not measured (cables without root) are omitted.
    """
    first = turns[turns["rank"] == 0].groupby("arm")
    medians: Any = first[["seconds", *PARTS]].median() / steps
    return [
        Measured(
            one,
            float(row["seconds"]),
            tuple(row[list(PARTS)]) if one.processes == 1 else None,
        )
        for one in settings
        if name_of(one) in medians.index
        for row in [medians.loc[name_of(one)]]
    ]


def reductions(trials: pd.DataFrame) -> list[Reduction]:
    """Return the medians over all trials."""
    keys = ["link", "processes", "num_bytes"]
    medians = trials.groupby(keys)["seconds"].median().reset_index()
    rows = medians.itertuples(index=False, name=None)
    return [Reduction(*row) for row in rows]


def machine_of(found: dict[str, Any]) -> Machine:
    """Read the machine from fit.json."""
    compute = Compute(**found["compute"])
    overheads = Overheads(**found["overheads"])
    return Machine(**{**found, "compute": compute, "overheads": overheads})


def link_of(network: Network, setting: Setting) -> Link | None:
    """Return the link of ``setting``; None if it sends nothing."""
    return None if setting.sync == NO_SYNC else network.link(setting.link)
