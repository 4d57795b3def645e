"""Distances between the gradients and parameters of two recordings, and their limits.

A distance beyond the quick limit is a fault if it is also beyond ten times the distance
of the twin (the same run from weights one rounding unit away); without a twin, only if
rounding cannot grow so far.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minitrain.compare.align import Pair, StepPair, ratio
from minitrain.compare.difference import What
from minitrain.proof.tolerances import TIMES_TWIN
from minitrain.recording.alarm import Row
from minitrain.recording.sketches import apart, common, is_finite, norm

Gaps = Mapping[str, float]
# Adam divides by the size of the gradient, so elements whose gradient is noise may move
# anywhere: a share r of noise in the gradients makes about sqrt(r) in the norm of the
# step. Gradients within the quick limit make at most the second.
ADAPTIVE_TIMES_ROOT, ADAPTIVE_SHARE = 10.0, 0.03
# a tensor whose gradient is only noise (the bias of attention keys) moves either way;
# if only a part is noise (keys that share it with queries), that part is small
NOISE_AT_MOST, PART_AT_MOST = 2.0, 0.1
# a fault could hide in a distance that only the twin allows, if it is this large
HIDES = 0.1


@dataclass(frozen=True)
class Distance:
    """Distances of all tensors of a ``kind`` (gradients or parameters) at a step;
    ``within``: rounding may explain all of them.

    ``tensor``: the one farthest beyond its limit; ``gap``, ``allowed``: its distance
    and limit; ``pairs``: the ranks of A and B where it differs. ``size``: the norm of
    the largest gradient, or the distance that training moved the model; ``own_size``:
    the same for ``tensor``. ``whole``: the distance of all tensors as a share of their
    size. ``num_beyond``, ``num_beyond_quick``: how many of ``num`` tensors are beyond
    the limit with and without a twin. ``hides``: only the twin's limit allows the
    distance, and it is so wide that a fault could hide.
    """

    kind: What
    equal: bool
    within: bool
    tensor: str = ""
    pairs: tuple[Pair, ...] = ()
    gap: float = 0.0
    allowed: float = 0.0
    size: float = 0.0
    own_size: float = 0.0
    whole: float = 0.0
    num_beyond: int = 0
    num_beyond_quick: int = 0
    num: int = 0
    hides: bool = False

    @property
    def share(self) -> float:
        """Return the gap as a share of ``size``."""
        return ratio(self.gap, self.size)

    @property
    def allowed_share(self) -> float:
        """Return the ``allowed`` distance as a share of ``size``."""
        return self.allowed / self.size if self.size > 0 else 0.0


def distance(place: StepPair, kind: What, noise: float) -> Distance:
    """Return the distance of gradients or parameters (``kind``) at ``place``;
    ``noise``: largest relative distance of gradients so far that counts as rounding.
    """
    gaps = _gaps(place, kind)
    ours, theirs = (row[kind] for row in place.first)
    norms = [[norm(entry) for entry in side.values()] for side in (ours, theirs)]
    if kind == What.GRADIENTS:
        finite = [[x for x in side if math.isfinite(x)] for side in norms]
        size = min(max(side, default=0.0) for side in finite)
        scale = {name: norm(entry) for name, entry in ours.items()}
    else:
        scale = place.trajectory.moved(place.first[0])
        size = math.hypot(*filter(math.isfinite, scale.values()))
    if not any(gaps.values()):
        return Distance(kind, True, True, size=size, num=len(ours))
    far = {name: max(gaps[name].values(), default=0.0) for name in gaps}
    if kind == What.GRADIENTS:
        quick: Gaps = dict.fromkeys(gaps, place.limits.gradients * size)
    else:
        quick = _quick(place, scale, noise)
    allowed = quick
    if place.twin is not None:
        # the twin shows the effect of noise, so the limits need not
        least = quick if kind == What.GRADIENTS else _quick(place, scale, None)
        allowed = _with_twin(place.twin[kind], ours, least, scale)
    beyond, beyond_quick = _beyond(far, allowed), _beyond(far, quick)
    adaptive = kind == What.PARAMETERS and not place.trajectory.linear
    noisy = bool(beyond) and adaptive and place.twin is None
    noisy = noisy and _is_noise(place, far, beyond, scale, allowed)
    worst = max(far, key=lambda name: far[name] / (allowed.get(name, 0.0) + 1e-300))
    hides = False
    if beyond_quick and not beyond:
        most = max(beyond_quick, key=lambda name: allowed[name])
        hides = ratio(allowed[most], size) > HIDES
        worst = most if hides else worst
    where = {pair: g for pair, g in gaps[worst].items() if g > allowed.get(worst, 0.0)}
    pairs = tuple(where or gaps[worst] or place.pairs)
    # the first pair may not have it, if each rank has optimizers of its own
    x, y = pairs[0]
    entry = place.a[x][kind].get(worst) or place.b[y][kind].get(worst)
    all_far = math.hypot(*far.values())
    of_all = math.hypot(*norms[0]) if kind == What.GRADIENTS else size
    return Distance(
        kind=kind,
        equal=False,
        within=noisy or not beyond,
        tensor=worst,
        pairs=pairs,
        gap=all_far if noisy else far[worst],
        allowed=math.hypot(*allowed.values()) if noisy else allowed.get(worst, 0.0),
        size=size,
        own_size=norm(entry) if kind == What.GRADIENTS else scale.get(worst, 0.0),
        whole=all_far / of_all if of_all > 0 else math.inf,
        num_beyond=len(beyond),
        num_beyond_quick=len(beyond_quick),
        num=len(gaps),
        hides=hides,
    )


def _gaps(place: StepPair, kind: What) -> dict[str, dict[Pair, float]]:
    # by tensor and pair of ranks; none for equal bits
    found: dict[str, dict[Pair, float]] = {}
    for pair in place.pairs:
        ours, theirs = place.a[pair[0]][kind], place.b[pair[1]][kind]
        for name in {**ours, **theirs}:
            x, y = ours.get(name), theirs.get(name)
            of = found.setdefault(name, {})
            if x is None or y is None:
                # no gradient and one of zeros: other bits, the same for most optimizers
                of[pair] = math.inf if norm(x or y) != 0 else 0.0
            elif x["hash"] != y["hash"]:
                of[pair] = apart(x, y)
    return found


def _quick(place: StepPair, scale: Gaps, noise: float | None) -> Gaps:
    share, unit = place.limits.linear, place.limits.unit
    if not place.trajectory.linear and noise is not None:
        root = ADAPTIVE_TIMES_ROOT * math.sqrt(max(noise, unit))
        share = max(share, min(root, ADAPTIVE_SHARE))
    # rounding of each step is a random walk of units in the last place
    steps, held = math.sqrt(place.step + 1), place.first[0]["parameters"]
    limits = {
        name: steps * place.trajectory.eps.get(name, 0.0) * norm(held[name])
        + share * moved
        for name, moved in scale.items()
    }
    # nothing is within a limit that is not finite
    return {n: limit if math.isfinite(limit) else 0.0 for n, limit in limits.items()}


def _with_twin(twin: Row, ours: Row, quick: Gaps, scale: Gaps) -> Gaps:
    # Ten times the distance of the twin. A small tensor of the twin may be near by
    # chance, so the limit is at least the share of the whole model.
    names = [n for n in common(ours, twin) if is_finite(ours[n]) and is_finite(twin[n])]
    far = {n: apart(ours[n], twin[n]) for n in names}
    size = math.hypot(*(scale.get(n, 0.0) for n in names))
    share = math.hypot(*far.values()) / size if size else 0.0
    allowed = {n: TIMES_TWIN * max(far[n], share * scale.get(n, 0.0)) for n in names}
    return {n: max(limit, allowed.get(n, 0.0)) for n, limit in quick.items()}


def _beyond(far: Gaps, limits: Gaps) -> list[str]:
    return [n for n, gap in far.items() if gap > limits.get(n, 0.0)]


def _is_noise(
    place: StepPair, far: Gaps, beyond: Sequence[str], scale: Gaps, allowed: Gaps
) -> bool:
    # whether all tensors beyond their limits have gradients of noise, or partly so, and
    # hardly count in the distance of the model
    gradients = place.first[0]["gradients"]
    norms = {name: norm(entry) for name, entry in gradients.items()}
    least = place.limits.gradients * max(norms.values(), default=0.0)
    for name in beyond:
        noise = norms.get(name, math.inf) <= least
        most = NOISE_AT_MOST if noise else PART_AT_MOST
        if not far[name] <= most * scale.get(name, 0.0) < math.inf:
            return False
    return math.hypot(*far.values()) <= math.hypot(*allowed.values())
