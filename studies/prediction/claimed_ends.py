"""Range of values within which claims about a crossover are tested."""

from crossover import Crossover, Gain


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
