"""How a recorded run trained, as far as what rounding may do depends on it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from minitrain.compare.align import (
    Row,
    apart,
    common,
    fit,
    joined,
    norm,
    sketches,
)
from minitrain.recording.format import Recording

# of a fit: SGD's step is a sum of gradients and weights
LINEAR = 1e-3
FLOATING = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.complex128),
)
# a sketch is itself a sum in float64
EPS_OF_SKETCH = 2.0**-49
# a unit in the last place, of each type that has one
EPS = {
    str(dtype).removeprefix("torch."): max(torch.finfo(dtype).eps, EPS_OF_SKETCH)
    for dtype in FLOATING
}


@dataclass(frozen=True)
class Course:
    """Where each tensor was after the first recorded step, how far that step took it,
    whether steps are linear in the gradients (SGD) or not (Adam), and whether training
    changes buffers.
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


def course_in(recording: Recording, optimizer: int) -> Course:
    """Of the first rank that recorded steps of this optimizer."""
    for _, one in sorted(recording.ranks.items()):
        rows = [row for key, row in sorted(one.steps.items()) if key[0] == optimizer]
        if rows:
            return course_of(one.header, rows)
    raise ValueError(f"no step of optimizer {optimizer}")


def course_of(header: Row, rows: Sequence[Row]) -> Course:
    """The course of a rank's rows, of one optimizer and in order."""
    first = sketches(rows[0], "parameters")
    about = header["parameters"]
    numel = {name: math.prod(one["shape"]) for name, one in about.items()}
    eps = {name: EPS.get(one["dtype"], 0.0) for name, one in about.items()}
    follows = len(rows) > 1 and rows[1]["step"] == rows[0]["step"] + 1
    if follows:
        second = sketches(rows[1], "parameters")
        move = {n: apart(first[n], second[n]) for n in common(first, second)}
    else:
        rate, gradients = max(rows[0]["lr"], default=0.0), rows[0]["gradients"]
        move = {
            n: rate * min(norm(gradients[n]), math.sqrt(numel.get(n, 0)))
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
        names = [name for name in names if name in before["parameters"]]
        start, end = (joined(sketches(r, "parameters"), names) for r in (before, row))
        parts = [joined(sketches(r, "gradients"), names) for r in past]
        found = fit(end - start, [*parts, start])
        # weights may be zero, or the same as a gradient
        found = found or fit(end - start, [*parts[-1:]])
        if found is not None:
            return found[1] < LINEAR
    return False
