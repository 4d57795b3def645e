"""Ratios of settings that were both held out: how wrong an answer may be."""

from collections.abc import Sequence

import pandas as pd
from crossover import Question, contenders
from setting import NO_SYNC, Setting, name_of

# what two settings that answer a question came to: ratios, predicted and measured
Pairs = dict[tuple[Setting, Setting], tuple[float, float]]


def pairs(
    question: Question, table: pd.DataFrame, held_out: Sequence[Setting]
) -> Pairs:
    """Of predictions in ``table``, by setting. Both settings of a pair were held out:
    one that was fitted would make the error too small.
    """
    found: Pairs = {}
    seen = [one for one in held_out if name_of(one) in table.index]
    for setting in seen:
        both = contenders(question, setting)
        if setting.sync != NO_SYNC and {*both} <= {*seen}:
            columns = table.loc[[*map(name_of, both)], ["predicted_ms", "measured_ms"]]
            ours, theirs = columns.to_numpy()
            found[both] = theirs[0] / ours[0], theirs[1] / ours[1]
    return found
