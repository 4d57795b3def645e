"""A gradient as a combination of the ranks' own, from their sketches.

A sketch is linear, so it holds for the sketches what holds for the tensors. What the
factors are tells most faults apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from minitrain.recording.alarm import Rows

# relative, of what is left of a fit: room for what is kept in bfloat16
CLOSE = 1e-2
# how much better a fit must be to be taken instead of another
BETTER = 10
# smallest by largest singular value: beyond it the factors say nothing
CONDITION = 1e-2


@dataclass(frozen=True)
class Sketches:
    """Of some tensors of one step, one row a rank; both have the same columns."""

    gradients: Tensor
    own: Tensor

    @property
    def mean(self) -> Tensor:
        """What data parallelism makes of the ranks' own gradients."""
        return self.own.mean(0)


def comparable(rows: Rows) -> list[str]:
    """The tensors of which every rank has its own gradient and the one it got."""
    tables = [row.get(kind, {}) for row in rows for kind in ("own", "gradients")]
    return [name for name in tables[1] if all(name in table for table in tables)]


def sketches(rows: Rows, names: Sequence[str]) -> Sketches | None:
    """Of ``names``; None where there is none, or one is not finite."""
    if not names:
        return None
    pair = [
        [[number for name in names for number in of(row, name)] for row in rows]
        for of in (
            lambda row, name: row["gradients"][name]["sketch"],
            lambda row, name: row["own"][name],
        )
    ]
    gradients, own = (torch.from_numpy(np.array(one, np.float64)) for one in pair)
    if not (gradients.isfinite().all() and own.isfinite().all()):
        return None
    return Sketches(gradients, own)


def times(target: Tensor, part: Tensor) -> tuple[float, float]:
    """The factor that brings ``part`` nearest to ``target``, and what is left, as a
    share of ``target``.
    """
    square, size = float(part @ part), float(target.norm())
    if not square or not size:
        return 0.0, 0.0 if not size else 1.0
    factor = float(target @ part) / square
    return factor, float((target - factor * part).norm()) / size


def factors(target: Tensor, own: Tensor) -> list[float] | None:
    """Of each rank's own gradient in ``target``; None where they do not explain it, or
    are too alike to be told apart.
    """
    singular = torch.linalg.svdvals(own)
    apart = own.shape[0] <= own.shape[1] and singular[-1] > CONDITION * singular[0]
    if not apart or not target.norm():
        return None
    found = torch.linalg.lstsq(own.T, target[:, None]).solution.flatten()
    rest = (found @ own - target).norm() / target.norm()
    return found.tolist() if rest < CLOSE else None


def lacking(found: Sequence[float]) -> list[int]:
    """The ranks whose gradient a sum with these factors lacks, where the others are in
    it alike; empty where it has another pattern.
    """
    largest = max(map(abs, found))
    lacks = [r for r, factor in enumerate(found) if abs(factor) < CLOSE * largest]
    there = [factor for rank, factor in enumerate(found) if rank not in lacks]
    alike = max(there) - min(there) <= 5 * CLOSE * largest
    return lacks if alike else []
