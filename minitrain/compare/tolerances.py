"""How far gradients and parameters of two recordings are apart, and may be.

The quick limits are those of the ladder (minitrain/proof/tolerances.py), as far as
norms tell them. What is beyond is held to a twin, where there is one. Beyond both it is
a fault; without a twin only what no rounding grows to is one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from minitrain.compare.align import Place, Row, apart, common, is_finite, norm
from minitrain.compare.trajectory import Course
from minitrain.proof.tolerances import SGD_SHARE, STATE_FLOAT64, TIMES_TWIN

Kind = Literal["gradients", "parameters"]
Pair = tuple[int, int]
Limits = Mapping[str, float]

# Adam divides by the gradient's size, so elements whose gradient is no more than noise
# go anywhere: of a share r of noise sqrt(r), in the norm, and some; what is within the
# quick limit of gradients makes no more than the second
ADAPTIVE_TIMES_ROOT, ADAPTIVE_SHARE = 10.0, 0.03
# a tensor that is nothing but noise (the bias of attention's keys) goes there or back;
# of one that is so in part (where keys share it with queries) that part is small
NOISE_AT_MOST, PART_AT_MOST = 2.0, 0.1
# by how much rounding grows in a step; what 16 bits round to, and some, and of a model
# in float64 what float32 does
GROWTH = 2.0
COARSE = {False: 0.03, True: 1e-5}
COARSE_ADAPTIVE = {False: 0.3, True: 0.03}
# what only a twin excuses, and so much of it, could be a fault as well
HIDES = 0.1


@dataclass(frozen=True)
class ByTwin:
    """Of what is within the limits by the twin alone, the ``tensor`` that is allowed
    most: how far it is apart, and may be, as a share of the model's size.
    """

    tensor: str
    share: float
    allowed: float


@dataclass(frozen=True)
class Measured:
    """How far ``kind`` is apart at a step.

    ``tensor`` is the one farthest beyond what is ``allowed``, ``pairs`` the ranks of A
    and B where it is unlike, ``size`` what its ``gap`` is a share of: of the largest
    gradient, or of how far training has moved the model. ``whole`` is the share of all
    tensors together; ``equal`` says that all bits are. ``by_twin`` is set where the
    twin excuses so much that a fault could hide.
    """

    kind: Kind
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
    trains_buffers: bool = False
    by_twin: ByTwin | None = None

    @property
    def share(self) -> float:
        """The gap as a share of ``size``."""
        return _share(self.gap, self.size)

    @property
    def allowed_share(self) -> float:
        """What is allowed, as a share of ``size``."""
        return self.allowed / self.size if self.size > 0 else 0.0


def measure(place: Place, kind: Kind, course: Course, noise: float) -> Measured:
    """Gradients or parameters of all ranks at ``place``; ``noise`` is the largest share
    of rounding in the gradients so far.
    """
    gaps = _gaps(place, kind)
    a, b = place.pairs[0]
    ours, theirs = place.a[a][kind], place.b[b][kind]
    size, scale = _sizes(place.a[a], ours, theirs, kind, course)
    if not any(gaps.values()):
        return Measured(kind, True, True, size=size, num=len(ours))
    far = {name: max(found.values(), default=0.0) for name, found in gaps.items()}
    quick = _quick(place, kind, course, size, scale, noise)
    allowed = quick
    if place.twin is not None:
        # it shows by itself what elements of noise do
        least = _quick(place, kind, course, size, scale, None)
        allowed = _with_twin(place.twin[kind], ours, least, scale)
    beyond, beyond_quick = _beyond(far, allowed), _beyond(far, quick)
    may_be_noise = kind == "parameters" and not course.linear and place.twin is None
    noisy = bool(beyond and may_be_noise) and _is_noise(
        place, far, beyond, scale, allowed
    )
    worst = max(far, key=lambda name: _times(far[name], allowed.get(name, 0.0)))
    where = {pair: g for pair, g in gaps[worst].items() if g > allowed.get(worst, 0.0)}
    entry = ours.get(worst) or theirs.get(worst)
    own_size = norm(entry) if entry else 0.0
    return Measured(
        kind=kind,
        equal=False,
        within=noisy or not beyond,
        tensor=worst,
        pairs=tuple(where or gaps[worst] or place.pairs),
        gap=math.hypot(*far.values()) if noisy else far[worst],
        allowed=math.hypot(*allowed.values()) if noisy else allowed.get(worst, 0.0),
        size=size,
        own_size=own_size if kind == "gradients" else scale.get(worst, 0.0),
        whole=_whole(far, [norm(e) for e in ours.values()], size, kind),
        num_beyond=len(beyond),
        num_beyond_quick=len(beyond_quick),
        num=len({**ours, **theirs}),
        trains_buffers=course.trains_buffers,
        by_twin=None if beyond else _by_twin(far, beyond_quick, allowed, size),
    )


def _gaps(place: Place, kind: Kind) -> dict[str, dict[Pair, float]]:
    """By tensor and pair of ranks; bits that are equal have none."""
    found: dict[str, dict[Pair, float]] = {}
    for pair in place.pairs:
        ours, theirs = place.a[pair[0]][kind], place.b[pair[1]][kind]
        for name in {**ours, **theirs}:
            x, y = ours.get(name), theirs.get(name)
            if x is None or y is None:
                # no gradient, and one of zeros, are other bits, and the same to most
                alone = norm(x or y)
                gaps = {pair: math.inf if alone != 0 else 0.0}
            elif x["hash"] == y["hash"]:
                gaps = {}
            else:
                gaps = {pair: apart(x["sketch"], y["sketch"])}
            found.setdefault(name, {}).update(gaps)
    return found


def _sizes(
    row: Row, ours: Row, theirs: Row, kind: Kind, course: Course
) -> tuple[float, dict[str, float]]:
    """The model's size that gaps are shares of, and that of each tensor."""
    if kind == "parameters":
        moved = course.moved(row)
        return math.hypot(*filter(math.isfinite, moved.values())), moved
    sides = [[norm(entry) for entry in side.values()] for side in (ours, theirs)]
    finite = [[x for x in side if math.isfinite(x)] for side in sides]
    size = min(max(side, default=0.0) for side in finite)
    return size, {name: norm(entry) for name, entry in ours.items()}


def _quick(
    place: Place,
    kind: Kind,
    course: Course,
    size: float,
    scale: Limits,
    noise: float | None,
) -> dict[str, float]:
    if kind == "gradients":
        a, b = place.pairs[0]
        names = {**place.a[a][kind], **place.b[b][kind]}
        return dict.fromkeys(names, place.gradient_share * size)
    share = STATE_FLOAT64 if place.double else SGD_SHARE
    if not course.linear and noise is not None:
        root = ADAPTIVE_TIMES_ROOT * math.sqrt(max(noise, place.unit))
        share = max(share, min(root, ADAPTIVE_SHARE))
    # a unit in the last place each step goes one way or the other
    steps = math.sqrt(place.step + 1)
    held = place.a[place.pairs[0][0]][kind]
    return {
        name: steps * course.eps.get(name, 0.0) * norm(held[name]) + share * moved
        for name, moved in scale.items()
    }


def _with_twin(twin: Row, ours: Row, quick: Limits, scale: Limits) -> dict[str, float]:
    """The quick limits, or ten times as far as the twin. A tensor of few elements may
    stay by chance where it was: it may go as far as the model does, for its size.
    """
    names = [n for n in common(ours, twin) if is_finite(ours[n]) and is_finite(twin[n])]
    far = {n: apart(ours[n]["sketch"], twin[n]["sketch"]) for n in names}
    size = math.hypot(*(scale.get(n, 0.0) for n in names))
    share = math.hypot(*far.values()) / size if size else 0.0
    allowed = {n: max(far[n], share * scale.get(n, 0.0)) for n in names}
    return {
        n: max(limit, TIMES_TWIN * allowed.get(n, 0.0)) for n, limit in quick.items()
    }


def _within(gap: float, limit: float) -> bool:
    """What is not finite never is."""
    return math.isfinite(gap) and gap <= limit


def _beyond(far: Limits, limits: Limits) -> list[str]:
    return [n for n, gap in far.items() if not _within(gap, limits.get(n, 0.0))]


def _times(gap: float, limit: float) -> float:
    """How many times the limit a gap is; of what is not finite, no limit is known."""
    if not math.isfinite(limit):
        return math.inf if gap else 0.0
    return gap / (limit + 1e-300)


def _by_twin(
    far: Limits, beyond_quick: Sequence[str], allowed: Limits, size: float
) -> ByTwin | None:
    """Where the twin alone excuses much."""
    if not beyond_quick:
        return None
    name = max(beyond_quick, key=lambda name: allowed[name])
    share = _share(allowed[name], size)
    return ByTwin(name, _share(far[name], size), share) if share > HIDES else None


def _is_noise(
    place: Place,
    far: Limits,
    beyond: Sequence[str],
    scale: Limits,
    allowed: Limits,
) -> bool:
    """Whether only tensors are beyond that hardly count beside all others: far those
    whose gradient is noise, and a little those of which a part is.
    """
    gradients = place.a[place.pairs[0][0]]["gradients"]
    norms = {name: norm(entry) for name, entry in gradients.items()}
    least = place.gradient_share * max(norms.values(), default=0.0)
    for name in beyond:
        noise = norms.get(name, math.inf) <= least
        most = NOISE_AT_MOST if noise else PART_AT_MOST
        if not _within(far[name], most * scale.get(name, 0.0)):
            return False
    return math.hypot(*far.values()) <= math.hypot(*allowed.values())


def _whole(far: Limits, norms: Sequence[float], size: float, kind: Kind) -> float:
    gap = math.hypot(*far.values())
    if kind == "gradients":
        size = math.hypot(*norms)
    return gap / size if size > 0 else math.inf


def _share(gap: float, size: float) -> float:
    if size > 0:
        return gap / size
    return math.inf if gap else 0.0


def beyond_doubt(place: Place, share: float, before: float, steps: int) -> bool:
    """Whether rounding cannot have grown to this ``share`` of gradients in so many
    ``steps``, from what it was ``before``.
    """
    grown = max(before, place.unit) * GROWTH ** min(steps, 64)
    return not share <= max(COARSE[place.double], grown)


def step_beyond_doubt(place: Place, share: float, steps: int, linear: bool) -> bool:
    """The same of parameters, whose gradients are alike."""
    if linear:
        return beyond_doubt(place, share, place.unit, steps)
    grown = place.unit * GROWTH ** min(steps, 64)
    return not share <= max(COARSE_ADAPTIVE[place.double], grown)
