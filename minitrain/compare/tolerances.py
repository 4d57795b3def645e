"""How far gradients and parameters of two recordings are apart, and may be.

The quick limits are those of the ladder (minitrain/proof/tolerances.py), estimated from
norms. What is beyond is compared with a twin, if there is one, and what is beyond both
is a fault; without a twin, only what rounding cannot grow to.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from minitrain.compare.align import StepPair, ratio
from minitrain.compare.difference import What
from minitrain.proof.tolerances import (
    GRADIENT_SHARE,
    GRADIENT_SHARE_FLOAT64,
    SGD_SHARE,
    STATE_FLOAT64,
    TIMES_TWIN,
)
from minitrain.recording.alarm import Row
from minitrain.recording.format import Recording
from minitrain.recording.sketches import apart, common, fit, is_finite, norm, vector

Pair = tuple[int, int]
Gaps = Mapping[str, float]


@dataclass(frozen=True)
class Limits:
    """Of gradients a share of the largest one, of parameters under SGD one of how far
    they moved, both from the ladder; ``unit`` is what rounding makes of one operation.
    ``coarse`` is what rounding to the next smaller type makes of a tensor, and some,
    ``coarse_adaptive`` what Adam makes of that.
    """

    gradients: float
    linear: float
    unit: float
    coarse: float
    coarse_adaptive: float


# the next smaller type is bfloat16 for float32, and float32 for float64
FLOAT32 = Limits(GRADIENT_SHARE, SGD_SHARE, 2.0**-24, 0.03, 0.3)
FLOAT64 = Limits(GRADIENT_SHARE_FLOAT64, STATE_FLOAT64, 2.0**-53, 1e-5, 0.03)
# Adam divides by the gradient's size, so elements whose gradient is no more than noise
# go anywhere: of a share r of noise sqrt(r), in the norm, and some; what is within the
# quick limit of gradients makes no more than the second
ADAPTIVE_TIMES_ROOT, ADAPTIVE_SHARE = 10.0, 0.03
# a tensor that is nothing but noise (the bias of attention's keys) goes there or back;
# of one that is so in part (where keys share it with queries) that part is small
NOISE_AT_MOST, PART_AT_MOST = 2.0, 0.1
# by how much rounding grows in a step, at most
GROWTH = 2.0
# what only a twin excuses, and so much of it, could be a fault as well
HIDES = 0.1
# units in the last place: a step as long is not rounded away
UNITS = 64
# of a fit: what rounding leaves in float32; what Adam makes of rounding in a step;
# SGD's step is a sum of gradients and weights
CLOSE, CLOSE_ADAPTIVE, LINEAR = 1e-3, 0.02, 1e-3
# of a whole gradient: what one in 16 bits is off
LOW_PRECISION = (2e-4, 2e-2)
# a difference that so much of follows the weights is no rounding, if it is as large as
# the weights times this, a step
FOLLOWS, LEAST_DECAY = 0.2, 1e-6
# rates that a float32 and a float64 hold
SAME_RATE = 1e-6
FLOATING = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.complex128),
)
# a unit in the last place, of each type that has one; a sketch is a sum in float64
EPS = {
    str(dtype).removeprefix("torch."): max(torch.finfo(dtype).eps, 2.0**-49)
    for dtype in FLOATING
}


def limits_of(place: StepPair) -> Limits:
    """Those of the type in which both train."""
    return FLOAT64 if place.double else FLOAT32


@dataclass(frozen=True)
class Course:
    """How a recorded run trained: where each tensor was after the first recorded step,
    how far that step took it, whether steps are linear in the gradients (SGD) or not
    (Adam), and whether training changes buffers.
    """

    numel: Mapping[str, int]
    eps: Mapping[str, float]
    first: Mapping[str, Row]
    first_move: Mapping[str, float]
    linear: bool
    trains_buffers: bool

    def moved(self, row: Row) -> dict[str, float]:
        """How far training has moved each tensor until ``row``, from its start."""
        now = row["parameters"]
        return {
            name: self.first_move[name] + apart(now[name], self.first[name])
            for name in common(self.first, now)
        }


def course_in(recording: Recording, optimizer: int) -> Course:
    """Of the first rank that recorded steps of this optimizer."""
    ranks = [one for _, one in sorted(recording.ranks.items())]
    one = next(r for r in ranks if any(key[0] == optimizer for key in r.steps))
    rows = [row for key, row in sorted(one.steps.items()) if key[0] == optimizer]
    first, about = rows[0]["parameters"], one.header["parameters"]
    numel = {name: math.prod(entry["shape"]) for name, entry in about.items()}
    if len(rows) > 1 and rows[1]["step"] == rows[0]["step"] + 1:
        second = rows[1]["parameters"]
        move = {n: apart(first[n], second[n]) for n in common(first, second)}
    else:
        rate, gradients = max(rows[0]["lr"], default=0.0), rows[0]["gradients"]
        move = {
            n: rate * min(norm(gradients[n]), math.sqrt(numel.get(n, 0)))
            for n in common(first, gradients)
        }
    return Course(
        numel=numel,
        eps={name: EPS.get(entry["dtype"], 0.0) for name, entry in about.items()},
        first=first,
        first_move={name: move.get(name, 0.0) for name in first},
        linear=_is_linear(rows),
        trains_buffers=rows[0]["buffers"] != rows[-1]["buffers"],
    )


def _is_linear(rows: Sequence[Row]) -> bool:
    # Whether the first step that can be fitted is one of SGD: with momentum a sum of
    # the gradients so far, with weight decay also of the weights.
    for number, (before, row) in enumerate(pairwise(rows)):
        past = rows[: number + 2]
        if row["step"] != number + rows[0]["step"] + 1:
            break
        tables = [*(one["gradients"] for one in past), row["parameters"]]
        names = common(*tables, before["parameters"])
        start, end = (vector(r, "parameters", names) for r in (before, row))
        parts = [vector(r, "gradients", names) for r in past]
        found = fit(end - start, [*parts, start])
        # weights may be zero, or the same as a gradient
        found = found or fit(end - start, parts[-1:])
        if found is not None:
            return found[1] < LINEAR
    return False


@dataclass(frozen=True)
class Measured:
    """How far ``kind`` is apart at a step.

    ``tensor`` is the one farthest beyond what is ``allowed``, ``pairs`` the ranks of A
    and B where it is unlike, ``size`` what its ``gap`` is a share of: of the largest
    gradient, or of how far training has moved the model. ``whole`` is the share of all
    tensors together; ``equal`` says that all bits are. ``hides`` says that the twin
    alone excuses so much that a fault could hide: ``tensor`` is allowed most then.
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
    trains_buffers: bool = False
    hides: bool = False

    @property
    def share(self) -> float:
        """The gap as a share of ``size``."""
        return ratio(self.gap, self.size)

    @property
    def allowed_share(self) -> float:
        """What is allowed, as a share of ``size``."""
        return self.allowed / self.size if self.size > 0 else 0.0


def measure(place: StepPair, kind: What, course: Course, noise: float) -> Measured:
    """Gradients or parameters of all ranks at ``place``; ``noise`` is the largest share
    of rounding in the gradients so far.
    """
    gaps = _gaps(place, kind)
    ours, theirs = (row[kind] for row in place.first)
    names = [*{**ours, **theirs}]
    norms = [[norm(entry) for entry in side.values()] for side in (ours, theirs)]
    if kind == What.GRADIENTS:
        finite = [[x for x in side if math.isfinite(x)] for side in norms]
        size = min(max(side, default=0.0) for side in finite)
        scale = {name: norm(entry) for name, entry in ours.items()}
    else:
        scale = course.moved(place.first[0])
        size = math.hypot(*filter(math.isfinite, scale.values()))
    if not any(gaps.values()):
        return Measured(kind, True, True, size=size, num=len(ours))
    far = {name: max(gaps[name].values(), default=0.0) for name in gaps}
    if kind == What.GRADIENTS:
        quick: Gaps = dict.fromkeys(names, limits_of(place).gradients * size)
    else:
        quick = _quick(place, course, scale, noise)
    allowed = quick
    if place.twin is not None:
        # it shows by itself what elements of noise do
        least = quick if kind == What.GRADIENTS else _quick(place, course, scale, None)
        allowed = _with_twin(place.twin[kind], ours, least, scale)
    beyond, beyond_quick = _beyond(far, allowed), _beyond(far, quick)
    may_be_noise = kind == What.PARAMETERS and not course.linear and place.twin is None
    noisy = bool(beyond) and may_be_noise
    noisy = noisy and _is_noise(place, far, beyond, scale, allowed)
    worst = max(far, key=lambda name: far[name] / (allowed.get(name, 0.0) + 1e-300))
    hides = False
    if beyond_quick and not beyond:
        most = max(beyond_quick, key=lambda name: allowed[name])
        hides = ratio(allowed[most], size) > HIDES
        worst = most if hides else worst
    where = {pair: g for pair, g in gaps[worst].items() if g > allowed.get(worst, 0.0)}
    entry = ours.get(worst) or theirs.get(worst)
    all_far = math.hypot(*far.values())
    of_all = math.hypot(*norms[0]) if kind == What.GRADIENTS else size
    return Measured(
        kind=kind,
        equal=False,
        within=noisy or not beyond,
        tensor=worst,
        pairs=tuple(where or gaps[worst] or place.pairs),
        gap=all_far if noisy else far[worst],
        allowed=math.hypot(*allowed.values()) if noisy else allowed.get(worst, 0.0),
        size=size,
        own_size=norm(entry) if kind == What.GRADIENTS else scale.get(worst, 0.0),
        whole=all_far / of_all if of_all > 0 else math.inf,
        num_beyond=len(beyond),
        num_beyond_quick=len(beyond_quick),
        num=len(names),
        trains_buffers=course.trains_buffers,
        hides=hides,
    )


def _gaps(place: StepPair, kind: What) -> dict[str, dict[Pair, float]]:
    # by tensor and pair of ranks; bits that are equal have none
    found: dict[str, dict[Pair, float]] = {}
    for pair in place.pairs:
        ours, theirs = place.a[pair[0]][kind], place.b[pair[1]][kind]
        for name in {**ours, **theirs}:
            x, y = ours.get(name), theirs.get(name)
            of = found.setdefault(name, {})
            if x is None or y is None:
                # no gradient, and one of zeros, are other bits, and the same to most
                of[pair] = math.inf if norm(x or y) != 0 else 0.0
            elif x["hash"] != y["hash"]:
                of[pair] = apart(x, y)
    return found


def _quick(place: StepPair, course: Course, scale: Gaps, noise: float | None) -> Gaps:
    share, unit = limits_of(place).linear, limits_of(place).unit
    if not course.linear and noise is not None:
        root = ADAPTIVE_TIMES_ROOT * math.sqrt(max(noise, unit))
        share = max(share, min(root, ADAPTIVE_SHARE))
    # a unit in the last place each step goes one way or the other
    steps, held = math.sqrt(place.step + 1), place.first[0]["parameters"]
    limits = {
        name: steps * course.eps.get(name, 0.0) * norm(held[name]) + share * moved
        for name, moved in scale.items()
    }
    # what is not finite never is within a limit
    return {n: limit if math.isfinite(limit) else 0.0 for n, limit in limits.items()}


def _with_twin(twin: Row, ours: Row, quick: Gaps, scale: Gaps) -> Gaps:
    # The quick limits, or ten times as far as the twin. A tensor of few elements may
    # stay by chance where it was: it may go as far as the model does, for its size.
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
    # Whether only tensors are beyond that hardly count beside all others: far those
    # whose gradient is noise, and a little those of which a part is.
    gradients = place.first[0]["gradients"]
    norms = {name: norm(entry) for name, entry in gradients.items()}
    least = limits_of(place).gradients * max(norms.values(), default=0.0)
    for name in beyond:
        noise = norms.get(name, math.inf) <= least
        most = NOISE_AT_MOST if noise else PART_AT_MOST
        if not far[name] <= most * scale.get(name, 0.0) < math.inf:
            return False
    return math.hypot(*far.values()) <= math.hypot(*allowed.values())


def stands(row: Row, name: str) -> bool:
    """Whether a step left a tensor where it was."""
    after = row["parameters"].get(name)
    return after is not None and bool(row["before"].get(name) == after["hash"])


def still_in_one(place: StepPair, course: Course) -> tuple[str, str, list[Pair]] | None:
    """The first tensor that moves in A or B alone, though both have a gradient for it
    that is more than noise: the tensor, the side on which it stays, and the ranks.

    A small tensor hardly counts beside the model, and under Adam may be far off by
    rounding alone. That it stays is no rounding, if the step is long enough.
    """
    found: dict[tuple[str, str], list[Pair]] = {}
    for x, y in place.pairs:
        a, b = place.a[x], place.b[y]
        kinds = [row[kind] for row in (a, b) for kind in ("parameters", "gradients")]
        for name in common(*kinds):
            in_a, in_b = stands(a, name), stands(b, name)
            if in_a != in_b and all(_must_move(place, r, name, course) for r in (a, b)):
                found.setdefault((name, "A" if in_a else "B"), []).append((x, y))
    return next(((*key, pairs) for key, pairs in found.items()), None)


def _must_move(place: StepPair, row: Any, name: str, course: Course) -> bool:
    gradient = norm(row["gradients"][name])
    largest = max(norm(entry) for entry in row["gradients"].values())
    if not gradient > limits_of(place).gradients * largest:
        return False
    # a step of Adam is as long as the rate, one of SGD as rate times gradient
    size = math.sqrt(course.numel.get(name, 0))
    reach = gradient if course.linear else max(gradient, size)
    unit = course.eps.get(name, 1.0) * norm(row["parameters"][name])
    return min(row["lr"], default=0.0) * reach > UNITS * unit
