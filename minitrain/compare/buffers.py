"""Buffers of two recordings: by their bits, and where rounding has begun, by distance.

Training need not read a buffer: the running mean of a norm, a moving average of the
weights. So nothing else shows that it is wrong.
"""

import math
from collections.abc import Iterator

from minitrain.compare.align import Place, Row, apart, is_finite
from minitrain.compare.diagnosis import cause_in_buffers
from minitrain.compare.difference import Unlike, at
from minitrain.compare.tolerances import COARSE

UNREAD = (
    "what training need not read (a running mean, a moving average?) goes otherwise"
)
COUNTED = "a count, or a flag, that goes otherwise"


def buffers_unlike(place: Place) -> Iterator[Unlike]:
    """Where all before is equal to the bit, and a buffer is not."""
    unlike = {rank: _unlike(place, rank) for rank, _ in place.pairs}
    ranks = [rank for rank, names in unlike.items() if names]
    if ranks:
        cause = cause_in_buffers(ranks, place.world_sizes[0])
        names, of = unlike[ranks[0]], len(place.a[ranks[0]]["buffers"])
        yield at(
            place, "buffers", f"{len(names)} of {of} buffers", cause, names[0], ranks
        )


def _unlike(place: Place, rank: int) -> list[str]:
    a, b = place.a[rank]["buffers"], place.b[rank]["buffers"]
    return [n for n in {**a, **b} if _hash(a.get(n)) != _hash(b.get(n))]


def _hash(entry: Row | None) -> str | None:
    return None if entry is None else str(entry["hash"])


def buffers_apart(place: Place) -> Iterator[Unlike]:
    """The buffer that is farthest apart, where gradients and parameters are within
    rounding: by more than 16 bits round, or not finite in one alone, which is sure.
    """
    found: dict[str, tuple[float, list[int]]] = {}
    for rank, _ in place.pairs:
        a, b = place.a[rank]["buffers"], place.b[rank]["buffers"]
        for name in _unlike(place, rank):
            share = _share(a.get(name), b.get(name))
            if share > COARSE[place.double]:
                far, ranks = found.get(name, (0.0, []))
                found[name] = max(far, share), [*ranks, rank]
    if not found:
        return
    name = max(found, key=lambda one: found[one][0])
    share, ranks = found[name]
    entries = [rows[ranks[0]]["buffers"].get(name) for rows in (place.a, place.b)]
    counted = all(entry and "norm" not in entry for entry in entries)
    much = f"about {share:.2g} of its size apart"
    if math.isinf(share):
        much = "other numbers" if counted else "not in both, or not finite"
    finite = [
        bool(entry and ("norm" not in entry or is_finite(entry))) for entry in entries
    ]
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    cause = COUNTED if counted else UNREAD
    yield at(
        place,
        "buffers",
        much + more,
        cause,
        name,
        ranks,
        sure=finite[0] != finite[1],
    )


def _share(a: Row | None, b: Row | None) -> float:
    if not (a and b and "norm" in a and "norm" in b):
        return math.inf
    size = max(a["norm"], b["norm"])
    return apart(a["sketch"], b["sketch"]) / size if size > 0 else math.inf
