"""What an all-reduce takes by itself, as a study measured it, beside that of a run."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from minitrain.report.numbers import ms

# what must be the same where it was measured
MACHINE = ("cpu", "cores", "torch")
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
) -> str:
    """What the all-reduce of a step is, and one of about ``num_bytes`` by itself.

    ``studied`` has the columns of metrics/collectives.csv. The second sentence is left
    out where nothing of the kind was measured on this ``machine``.
    """
    text = (
        "The all-reduce of a step reaches from handing gradients over until they are "
        "reduced: it holds waiting for the other ranks, and for a core."
    )
    mine = studied.query("backend == 'gloo' and world_size == @world_size")
    for key in MACHINE:
        mine = mine[mine[key] == machine[key]]
    if sync not in WHOLE or mine.empty:
        return text
    apart = [abs(math.log(size / num_bytes)) for size in mine["num_bytes"]]
    if min(apart) > math.log(NEAR):
        return text
    nearest = mine.iloc[apart.index(min(apart))]
    size, took = f"{nearest['num_bytes'] / 1e6:.1f} MB", ms(nearest["p50_us"] / 1e3)
    return (
        f"{text} By itself, one of {size} among {world_size} processes takes {took} "
        "over gloo (the study collectives, on this kind of machine); the gradients of "
        f"a step are {num_bytes / 1e6:.1f} MB."
    )
