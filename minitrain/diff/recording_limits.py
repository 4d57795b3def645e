"""How far gradients and parameters of two recordings are apart, and may be.

The quick limits are those of the ladder (minitrain/proof/tolerances.py), as far as
norms tell them. What is beyond is held to a twin, where there is one. Beyond both it is
a fault; without a twin only what no rounding grows to is one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch

from minitrain.diff.recording_places import (
    Place,
    Row,
    apart,
    common,
    fit,
    joined,
    norm,
    sketches,
)
from minitrain.proof.tolerances import GRADIENT_SHARE, SGD_SHARE, TIMES_TWIN

Kind = Literal["gradients", "parameters"]
Pair = tuple[int, int]

# what rounding alone makes of one operation in float32
UNIT = 2.0**-24
# Adam divides by the gradient's size, so elements whose gradient is no more than noise
# go anywhere: of a share r of noise sqrt(r), in the norm, and some
ADAPTIVE_TIMES_ROOT = 10.0
# a tensor that is nothing but noise (the bias of attention's keys) goes there or back
ADAPTIVE_AT_MOST = 2.0
# what 16 bits round to, and some; and by how much rounding grows in a step
COARSE, COARSE_ADAPTIVE, GROWTH = 0.03, 0.3, 2.0
# of a fit: SGD's step is a sum of gradients and weights
LINEAR = 1e-3


@dataclass(frozen=True)
class Course:
    """How A trained, as far as limits depend on it: where each tensor was after the
    first recorded step, how far that step took it, whether steps are linear in the
    gradients (SGD) or not (Adam), and whether training changes buffers.
    """

    numel: Mapping[str, int]
    eps: Mapping[str, float]
    first: Mapping[str, Sequence[float]]
    first_move: Mapping[str, float]
    linear: bool
    trains_buffers: bool

    def moved(self, row: Row) -> dict[str, float]:
        """How far training has moved each tensor until ``row``, from its start."""
        now = sketches(row, "parameters")
        return {
            name: self.first_move[name] + apart(now[name], self.first[name])
            for name in common(self.first, now)
        }


def course_of(header: Row, rows: Sequence[Row]) -> Course:
    """The course of a rank's rows, of one optimizer and in order."""
    first = sketches(rows[0], "parameters")
    numel, eps = {}, {}
    for name, about in header["parameters"].items():
        numel[name] = math.prod(about["shape"])
        dtype = getattr(torch, about["dtype"])
        eps[name] = torch.finfo(dtype).eps if dtype.is_floating_point else 0.0
    follows = len(rows) > 1 and rows[1]["step"] == rows[0]["step"] + 1
    if follows:
        second = sketches(rows[1], "parameters")
        move = {n: apart(first[n], second[n]) for n in common(first, second)}
    else:
        rate, gradients = max(rows[0]["lr"], default=0.0), rows[0]["gradients"]
        move = {
            n: rate * min(norm(gradients[n]), math.sqrt(numel[n]))
            for n in common(first, gradients)
        }
    first_move = {name: move.get(name, 0.0) for name in first}
    buffers = rows[0]["buffers"] != rows[-1]["buffers"]
    return Course(numel, eps, first, first_move, _is_linear(rows), buffers)


def _is_linear(rows: Sequence[Row]) -> bool:
    """Whether the first step that can be told is one of SGD: with momentum a sum of the
    gradients so far, with weight decay also of the weights.
    """
    for number, (before, row) in enumerate(pairwise(rows)):
        past = rows[: number + 2]
        if row["step"] != number + rows[0]["step"] + 1:
            break
        names = common(*(one["gradients"] for one in past), row["parameters"])
        start, end = (joined(sketches(r, "parameters"), names) for r in (before, row))
        parts = [joined(sketches(r, "gradients"), names) for r in past]
        found = fit(end - start, [*parts, start])
        # weights may be zero, or the same as a gradient
        found = found or fit(end - start, [*parts[-1:]])
        if found is not None:
            return found[1] < LINEAR
    return False


@dataclass(frozen=True)
class Measured:
    """How far ``kind`` is apart at a step.

    ``tensor`` is the one farthest beyond what is ``allowed``, ``pairs`` the ranks of A
    and B where it is unlike, ``size`` what its ``gap`` is a share of: of the largest
    gradient, or of how far training has moved the model. ``whole`` is the share of all
    tensors together; ``equal`` says that all bits are.
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

    @property
    def share(self) -> float:
        """The gap as a share of ``size``."""
        if self.size > 0:
            return self.gap / self.size
        return math.inf if self.gap else 0.0

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
    allowed = _with_twin(place, kind, ours, quick, scale)
    beyond = [name for name, gap in far.items() if not gap <= allowed.get(name, 0.0)]
    may_be_noise = kind == "parameters" and not course.linear and place.twin is None
    noisy = bool(beyond and may_be_noise) and _is_noise(far, beyond, scale, allowed)
    worst = max(far, key=lambda name: far[name] / (allowed.get(name, 0.0) + 1e-300))
    where = {pair: g for pair, g in gaps[worst].items() if g > allowed.get(worst, 0.0)}
    entry = ours.get(worst) or theirs[worst]
    return Measured(
        kind=kind,
        equal=False,
        within=noisy or not beyond,
        tensor=worst,
        pairs=tuple(where or gaps[worst] or place.pairs),
        gap=math.hypot(*far.values()) if noisy else far[worst],
        allowed=math.hypot(*allowed.values()) if noisy else allowed.get(worst, 0.0),
        size=size,
        own_size=norm(entry) if kind == "gradients" else scale.get(worst, 0.0),
        whole=_whole(far, [norm(e) for e in ours.values()], size, kind),
        num_beyond=len(beyond),
        num_beyond_quick=sum(not gap <= quick.get(n, 0.0) for n, gap in far.items()),
        num=len({**ours, **theirs}),
        trains_buffers=course.trains_buffers,
    )


def _gaps(place: Place, kind: Kind) -> dict[str, dict[Pair, float]]:
    """By tensor and pair of ranks; bits that are equal have none."""
    found: dict[str, dict[Pair, float]] = {}
    for pair in place.pairs:
        ours, theirs = place.a[pair[0]][kind], place.b[pair[1]][kind]
        for name in {**ours, **theirs}:
            x, y = ours.get(name), theirs.get(name)
            if x is None or y is None:
                # no gradient, and one of zeros, are the same to most
                alone = norm(x or y)
                gaps = {pair: alone} if alone else {}
            elif x["sha"] == y["sha"]:
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
        return math.hypot(*moved.values()), moved
    sides = [[norm(entry) for entry in side.values()] for side in (ours, theirs)]
    finite = [[x for x in side if math.isfinite(x)] for side in sides]
    size = min(max(side, default=0.0) for side in finite)
    return size, {name: norm(entry) for name, entry in ours.items()}


def _quick(
    place: Place,
    kind: Kind,
    course: Course,
    size: float,
    scale: Mapping[str, float],
    noise: float,
) -> dict[str, float]:
    if kind == "gradients":
        a, b = place.pairs[0]
        names = {**place.a[a][kind], **place.b[b][kind]}
        return dict.fromkeys(names, GRADIENT_SHARE * size)
    share = SGD_SHARE
    if not course.linear:
        share = max(share, ADAPTIVE_TIMES_ROOT * math.sqrt(noise))
    # a unit in the last place each step goes one way or the other
    steps = math.sqrt(place.step + 1)
    held = place.a[place.pairs[0][0]][kind]
    return {
        name: steps * course.eps[name] * norm(held[name]) + share * moved
        for name, moved in scale.items()
    }


def _with_twin(
    place: Place,
    kind: Kind,
    ours: Row,
    quick: Mapping[str, float],
    scale: Mapping[str, float],
) -> dict[str, float]:
    """The quick limits, or ten times as far as the twin. A tensor of few elements may
    stay by chance where it was: it may go as far as the model does, for its size.
    """
    if place.twin is None:
        return dict(quick)
    twin = place.twin[kind]
    names = common(ours, twin)
    far = {n: apart(ours[n]["sketch"], twin[n]["sketch"]) for n in names}
    size = math.hypot(*(scale.get(n, 0.0) for n in names))
    share = math.hypot(*far.values()) / size if size else 0.0
    allowed = {n: max(far[n], share * scale.get(n, 0.0)) for n in names}
    return {
        n: max(limit, TIMES_TWIN * allowed.get(n, 0.0)) for n, limit in quick.items()
    }


def _is_noise(
    far: Mapping[str, float],
    beyond: Sequence[str],
    scale: Mapping[str, float],
    allowed: Mapping[str, float],
) -> bool:
    """Whether only tensors are beyond that hardly count beside all others."""
    near = all(far[n] <= ADAPTIVE_AT_MOST * scale.get(n, 0.0) for n in beyond)
    return near and math.hypot(*far.values()) <= math.hypot(*allowed.values())


def _whole(
    far: Mapping[str, float], norms: Sequence[float], size: float, kind: Kind
) -> float:
    gap = math.hypot(*far.values())
    if kind == "gradients":
        size = math.hypot(*norms)
    return gap / size if size > 0 else math.inf


def beyond_doubt(share: float, before: float, steps: int, coarse: float) -> bool:
    """Whether rounding cannot have grown to this ``share`` in so many ``steps``, from
    what it was ``before``.
    """
    grown = max(before, UNIT) * GROWTH ** min(steps, 64)
    return not share <= max(coarse, grown)
