"""Ratios of held-out settings, for the error of an answer."""

from collections.abc import Sequence

import pandas as pd
from crossover import Question, contenders
from setting import NO_SYNC, Setting, name_of

# predicted and measured ratios of the two settings of a question
Pairs = dict[tuple[Setting, Setting], tuple[float, float]]


def pairs(
    question: Question, table: pd.DataFrame, held_out: Sequence[Setting]
) -> Pairs:
    """Return pairs of settings in ``table`` that were both held out; with a fitted
    setting the error would be too small.
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
