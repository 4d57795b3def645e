"""Trajectory of a recorded run: the length and kind of its steps."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from minitrain.compare.limits import LINEAR
from minitrain.recording.alarm import Row
from minitrain.recording.format import Recording
from minitrain.recording.sketches import apart, common, fit, norm, vector

FLOATING = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.complex128),
)
# a unit in the last place, of each type that has one; a sketch is a sum in float64
EPS = {
    str(dtype).removeprefix("torch."): max(torch.finfo(dtype).eps, 2.0**-49)
    for dtype in FLOATING
}


@dataclass(frozen=True)
class Trajectory:
    """Course of a recorded run: where each tensor was after the first recorded step,
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
        """Return how far training has moved each tensor until ``row``."""
        now = row["parameters"]
        return {
            name: self.first_move[name] + apart(now[name], self.first[name])
            for name in common(self.first, now)
        }


def trajectory_of(recording: Recording, optimizer: int) -> Trajectory:
    """Return the trajectory of the first rank that recorded steps of ``optimizer``."""
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
    return Trajectory(
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
