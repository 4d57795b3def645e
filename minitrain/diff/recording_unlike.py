"""What differs at a step: how it is said, and what is compared by its bits alone."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from minitrain.diff.diagnosis import UNKNOWN, cause_in_buffers
from minitrain.diff.recording_clauses import NOT_RESTORED, SETTINGS, cause_in_rates
from minitrain.diff.recording_places import Place, Row, in_ranks, samples

# rates that a float32 and a float64 hold
SAME_RATE = 1e-6


@dataclass(frozen=True)
class Unlike:
    """What differs at a step, by how ``much``, and the probable cause; not ``sure``
    where rounding might have come to it. ``since`` is the recorded step before;
    ``onwards`` says that it is so from here on, whatever comes.
    """

    step: int
    what: str
    much: str
    cause: str = UNKNOWN
    tensor: str = ""
    ranks: str = ""
    sure: bool = True
    since: int | None = None
    optimizer: int = 0
    onwards: bool = False


def rates_unlike(place: Place) -> Unlike | None:
    """The first ranks with other learning rates."""
    unlike = [(x, y) for x, y in place.pairs if not _same_rates(place.a[x], place.b[y])]
    if not unlike:
        return None
    x, y = unlike[0]
    much, cause = cause_in_rates(place.a[x], place.b[y], place.world_sizes)
    ranks = [rank for rank, _ in unlike] if place.same_size else []
    return _at(place, "learning rate", much, cause, "", ranks)


def _same_rates(a: Row, b: Row) -> bool:
    """Group by group; where there are other groups, the same rates among them."""
    ours, theirs = a["lr"], b["lr"]
    if len(ours) != len(theirs):
        ours, theirs = sorted({*ours}), sorted({*theirs})
    return len(ours) == len(theirs) and all(
        math.isclose(p, q, rel_tol=SAME_RATE) for p, q in zip(ours, theirs, strict=True)
    )


def hidden_unlike(place: Place, same_torch: bool) -> Iterator[Unlike]:
    """Where gradients and parameters have equal bits, and something else has not."""
    for rank, _ in place.pairs:
        a, b = place.a[rank]["buffers"], place.b[rank]["buffers"]
        names = [name for name in {**a, **b} if a.get(name) != b.get(name)]
        if names:
            ranks = [
                r
                for r, _ in place.pairs
                if place.a[r]["buffers"] != place.b[r]["buffers"]
            ]
            cause = cause_in_buffers(ranks, place.world_sizes[0])
            much = f"{len(names)} of {len(a)} buffers"
            yield _at(place, "buffers", much, cause, names[0], ranks)
            return
    ranks = [
        r for r, _ in place.pairs if place.a[r]["moments"] != place.b[r]["moments"]
    ]
    # another version may keep the same state in another form
    if ranks and same_torch:
        cause = f"{NOT_RESTORED}, or {SETTINGS}"
        yield _at(place, "optimizer state", "other bits", cause, "", ranks)


def _at(
    place: Place, what: str, much: str, cause: str, tensor: str, ranks: list[int]
) -> Unlike:
    return Unlike(
        place.step,
        what,
        much,
        cause,
        tensor,
        in_ranks(ranks) if ranks and len(ranks) < len(place.pairs) else "",
        optimizer=place.optimizer,
    )


def rest_is_equal(place: Place) -> bool:
    """Whether all but gradients and parameters is, as far as it must be."""
    if samples(place.a) != samples(place.b):
        return False
    # buffers and an optimizer's share of its state are of a rank's own
    kinds = ("lr", "buffers", "moments") if place.same_size else ("lr",)
    return all(place.a[x][k] == place.b[y][k] for x, y in place.pairs for k in kinds)
