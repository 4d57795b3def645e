"""Distances between the gradients and parameters of two recordings, and their limits.

What is measured, by tensor, is the distance of two sketches. A tensor has a quick
limit: how far rounding alone usually carries it. If there is a twin of A (the same run
from weights one rounding unit away), its limit is ten times the distance of the twin,
where that is larger. :func:`distance` decides whether a distance is ``within`` the
limits, and whether the twin's limit ``hides`` a fault.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minitrain.compare.align import Pair, StepPair, ratio
from minitrain.compare.difference import What
from minitrain.proof.tolerances import TIMES_TWIN
from minitrain.recording.alarm import Row
from minitrain.recording.sketches import apart, common, is_finite, norm

# numbers by name of tensor
Sizes = Mapping[str, float]
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
    distance, and it is so wide that a fault could hide; ``tensor`` then has the widest.
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


@dataclass(frozen=True)
class _Measured:
    """The tensors of a ``kind`` at ``place``: ``gaps``, distances by pair of ranks,
    without pairs of equal bits; ``far``, the largest of each tensor; ``scale``, its
    norm in A, or how far training moved it; ``size`` as in Distance.
    """

    place: StepPair
    kind: What
    gaps: Mapping[str, Mapping[Pair, float]]
    far: Sizes
    scale: Sizes
    size: float

    def beyond(self, limits: Sizes) -> list[str]:
        """Return the tensors that are farther apart than their limit, 0 without one."""
        return [n for n, gap in self.far.items() if gap > limits.get(n, 0.0)]


def distance(place: StepPair, kind: What, noise: float) -> Distance:
    """Return the distance of gradients or parameters (``kind``) at ``place``;
    ``noise``: largest relative distance of gradients so far that counts as rounding.
    """
    found = _measured(place, kind)
    if not any(found.gaps.values()):
        num = len(place.first[0][kind])
        return Distance(kind, True, True, size=found.size, num=num)
    quick = _quick_limits(found, noise)
    limits = quick if place.twin is None else _limits_of_twin(found, place.twin[kind])
    beyond, beyond_quick = found.beyond(limits), found.beyond(quick)
    is_noise = bool(beyond) and _is_noise(found, beyond, limits)
    within = is_noise or not beyond
    # of the tensors that only the twin allows; a fault as large as its limit would pass
    widest = max(beyond_quick, key=lambda name: limits.get(name, 0.0), default="")
    hides = not beyond and ratio(limits.get(widest, 0.0), found.size) > HIDES
    worst = max(found.far, key=lambda n: found.far[n] / (limits.get(n, 0.0) + 1e-300))
    tensor = widest if hides else worst
    allowed, all_far = limits.get(tensor, 0.0), math.hypot(*found.far.values())
    gaps = found.gaps[tensor]
    pairs = tuple({p: g for p, g in gaps.items() if g > allowed} or gaps or place.pairs)
    return Distance(
        kind=kind,
        equal=False,
        within=within,
        tensor=tensor,
        pairs=pairs,
        # tensors of noise are judged together, not one by one
        gap=all_far if is_noise else found.far[tensor],
        allowed=math.hypot(*limits.values()) if is_noise else allowed,
        size=found.size,
        own_size=found.scale.get(tensor, 0.0),
        whole=ratio(all_far, _of_all(found.scale)),
        num_beyond=len(beyond),
        num_beyond_quick=len(beyond_quick),
        num=len(found.gaps),
        hides=hides,
    )


def _measured(place: StepPair, kind: What) -> _Measured:
    gaps = _gaps(place, kind)
    far = {name: max(of.values(), default=0.0) for name, of in gaps.items()}
    if kind == What.PARAMETERS:
        scale = place.trajectory.moved(place.first[0])
        size = _of_all(scale)
    else:
        sides = [{n: norm(one) for n, one in row[kind].items()} for row in place.first]
        finite = (filter(math.isfinite, side.values()) for side in sides)
        size = min(max(side, default=0.0) for side in finite)
        scale = sides[0]
    return _Measured(place, kind, gaps, far, scale, size)


def _of_all(sizes: Sizes) -> float:
    return math.hypot(*filter(math.isfinite, sizes.values()))


def _gaps(place: StepPair, kind: What) -> dict[str, dict[Pair, float]]:
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


def _quick_limits(found: _Measured, noise: float | None) -> Sizes:
    # ``noise`` as in distance(), None not to allow for its effect on a step of Adam
    place = found.place
    if found.kind == What.GRADIENTS:
        return dict.fromkeys(found.gaps, place.limits.gradients * found.size)
    share = place.limits.linear
    if not place.trajectory.linear and noise is not None:
        root = ADAPTIVE_TIMES_ROOT * math.sqrt(max(noise, place.limits.unit))
        share = max(share, min(root, ADAPTIVE_SHARE))
    # rounding of each step is a random walk of units in the last place
    steps, held = math.sqrt(place.step + 1), place.first[0][found.kind]
    limits = {
        name: steps * place.trajectory.eps.get(name, 0.0) * norm(held[name])
        + share * moved
        for name, moved in found.scale.items()
    }
    # nothing is within a limit that is not finite
    return {n: limit if math.isfinite(limit) else 0.0 for n, limit in limits.items()}


def _limits_of_twin(found: _Measured, twin: Row) -> Sizes:
    # a small tensor of the twin may be near by chance, so each counts as at least as
    # far as the whole model, as a share; the twin itself shows the effect of noise
    ours, scale = found.place.first[0][found.kind], found.scale
    names = [n for n in common(ours, twin) if is_finite(ours[n]) and is_finite(twin[n])]
    far = {n: apart(ours[n], twin[n]) for n in names}
    size = math.hypot(*(scale.get(n, 0.0) for n in names))
    share = math.hypot(*far.values()) / size if size else 0.0
    allowed = {n: TIMES_TWIN * max(far[n], share * scale.get(n, 0.0)) for n in names}
    quick = _quick_limits(found, noise=None)
    return {n: max(limit, allowed.get(n, 0.0)) for n, limit in quick.items()}


def _is_noise(found: _Measured, beyond: Sequence[str], limits: Sizes) -> bool:
    # whether all tensors beyond their limits have gradients of noise, or partly so, and
    # hardly count in the distance of the model; only Adam carries noise so far
    place, far = found.place, found.far
    is_adaptive = found.kind == What.PARAMETERS and not place.trajectory.linear
    if not is_adaptive or place.twin is not None:
        return False
    gradients = place.first[0]["gradients"]
    norms = {name: norm(entry) for name, entry in gradients.items()}
    least = place.limits.gradients * max(norms.values(), default=0.0)
    for name in beyond:
        is_all_noise = norms.get(name, math.inf) <= least
        most = NOISE_AT_MOST if is_all_noise else PART_AT_MOST
        if not far[name] <= most * found.scale.get(name, 0.0) < math.inf:
            return False
    return math.hypot(*far.values()) <= math.hypot(*limits.values())
