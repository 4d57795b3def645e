"""How far from a crossover its claims can be tried at most."""

from crossover import Crossover, Gain


def claimed_ends(
    gain: Gain, found: Crossover, ends: tuple[float, float]
) -> tuple[float, float]:
    """The ends of the range; in the place of one at which what is claimed on its side
    is not as sure, where it begins to be sure: a gain need not go on growing.
    """
    low, high = (
        end if sure is None or _is_as_sure(gain(end), gain(sure)) else sure
        for end, sure in zip(ends, (found.low, found.high), strict=True)
    )
    return low, high


def _is_as_sure(at_end: float, where_sure: float) -> bool:
    return at_end * where_sure > 0 and abs(at_end) >= abs(where_sure)
