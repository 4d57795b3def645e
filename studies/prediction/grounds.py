"""Grounds of an answer: ratios of held-out settings, and the range of its claims."""

from collections.abc import Sequence

import pandas as pd
from crossover import Crossover, Gain, Question, contenders
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


def claimed_ends(
    gain: Gain, found: Crossover, ends: tuple[float, float]
) -> tuple[float, float]:
    """Return the ends of the range. An end at which the claim on its side is less
    certain is replaced by the point of certainty nearest to the crossover, since a gain
    need not be monotonic.
    """
    low, high = (
        end if sure is None or _is_as_sure(gain(end), gain(sure)) else sure
        for end, sure in zip(ends, (found.low, found.high), strict=True)
    )
    return low, high


def _is_as_sure(at_end: float, where_sure: float) -> bool:
    return at_end * where_sure > 0 and abs(at_end) >= abs(where_sure)
