"""A tensor that a step moves in one recording, and leaves where it was in the other.

A small one hardly counts beside the model, and under Adam may be far off by rounding
alone. That it stays where it was is no rounding, if the step is long enough.
"""

import math
from dataclasses import dataclass

from minitrain.compare.align import Place, Row, common, norm
from minitrain.compare.trajectory import Course

# units in the last place: a step as long is not rounded away
UNITS = 64


@dataclass(frozen=True)
class Still:
    """The ``tensor`` that stays on one ``side``, and on which ranks of A and B."""

    tensor: str
    side: str
    pairs: tuple[tuple[int, int], ...]


def stands(row: Row, name: str) -> bool:
    """Whether a step left a tensor where it was."""
    after = row["parameters"].get(name)
    return after is not None and bool(row["before"].get(name) == after["hash"])


def still_in_one(place: Place, course: Course) -> Still | None:
    """The first tensor that moves in A or B alone, though both have a gradient for it
    that is more than noise.
    """
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for x, y in place.pairs:
        a, b = place.a[x], place.b[y]
        kinds = [row[kind] for row in (a, b) for kind in ("parameters", "gradients")]
        for name in common(*kinds):
            in_a, in_b = stands(a, name), stands(b, name)
            if in_a != in_b and all(_must_move(place, r, name, course) for r in (a, b)):
                found.setdefault((name, "A" if in_a else "B"), []).append((x, y))
    for (name, side), pairs in found.items():
        return Still(name, side, tuple(pairs))
    return None


def _must_move(place: Place, row: Row, name: str, course: Course) -> bool:
    norms = [norm(entry) for entry in row["gradients"].values()]
    gradient = norm(row["gradients"][name])
    if not gradient > place.gradient_share * max(norms):
        return False
    # a step of Adam is as long as the rate, one of SGD as rate times gradient
    size = math.sqrt(course.numel.get(name, 0))
    reach = gradient if course.linear else max(gradient, size)
    unit = course.eps.get(name, 1.0) * norm(row["parameters"][name])
    return min(row["lr"], default=0.0) * reach > UNITS * unit
