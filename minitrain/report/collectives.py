"""What an all-reduce takes by itself, as a study measured it, beside that of a run."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from minitrain.report.numbers import ms

# what must be the same where it was measured
MACHINE = ("cpu", "cores", "torch")
ORIGIN = ("measured_at", "code_sha256")
# how many times the payload another may be to say something of it
NEAR = 2
# strategies that send every gradient once, in float32
WHOLE = ("ddp", "flat")


def all_reduce_sentences(
    studied: pd.DataFrame,
    machine: Mapping[str, Any],
    sync: str,
    world_size: int,
    num_bytes: int,
    num_hosts: int = 1,
) -> str:
    """What the all-reduce of a step is, and one of about ``num_bytes`` by itself.

    ``studied`` has the columns of metrics/collectives.csv. The second sentence is left
    out where nothing of the kind was measured on this ``machine``: never for a run on
    several hosts (``num_hosts``).
    """
    text = (
        "The all-reduce of a step reaches from handing gradients over until they are "
        "reduced: it holds waiting for the other ranks, and for a core."
    )
    mine = studied.query("backend == 'gloo' and world_size == @world_size")
    for key in MACHINE:
        mine = mine[mine[key] == machine[key]]
    # a figure of which nobody knows what made it is not quoted
    if not {*ORIGIN} <= {*studied}:
        return text
    if num_hosts > 1 or sync not in WHOLE or mine.empty:
        return text
    apart = [abs(math.log(size / num_bytes)) for size in mine["num_bytes"]]
    if min(apart) > math.log(NEAR):
        return text
    nearest = mine.iloc[apart.index(min(apart))]
    size, took = _size(nearest["num_bytes"]), ms(nearest["p50_us"] / 1e3)
    return (
        f"{text} By itself, one of {size} among {world_size} processes takes {took} "
        f"over gloo (the study collectives, on this kind of machine, measured on "
        f"{nearest['measured_at'][:10]} by code {nearest['code_sha256'][:12]}); the "
        f"gradients of a step are {_size(num_bytes)}."
    )


def _size(num_bytes: float) -> str:
    unit, name = (1e6, "MB") if num_bytes >= 1e6 else (1e3, "kB")
    return f"{num_bytes / unit:.1f} {name}"
