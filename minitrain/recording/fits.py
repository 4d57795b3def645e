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
    """Sketches of some tensors of one step, one row a rank, with the same columns."""

    gradients: Tensor
    own: Tensor

    @property
    def mean(self) -> Tensor:
        """Return what data parallelism makes of the ranks' own gradients."""
        return self.own.mean(0)


def comparable(rows: Rows) -> list[str]:
    """Return tensors of which every rank has its own gradient and the one it got."""
    tables = [row.get(kind, {}) for row in rows for kind in ("own", "gradients")]
    return [name for name in tables[1] if all(name in table for table in tables)]


def sketches(rows: Rows, names: Sequence[str]) -> Sketches | None:
    """Return those of ``names``; None if there are none, or one is not finite."""
    if not names:
        return None
    of = [[row["gradients"][n]["sketch"] for n in names] for row in rows]
    own = [[row["own"][n] for n in names] for row in rows]
    both = torch.from_numpy(np.array([of, own], np.float64)).flatten(2)
    return Sketches(*both) if both.isfinite().all() else None


def times(target: Tensor, part: Tensor) -> tuple[float, float]:
    """Return the factor that brings ``part`` nearest to ``target``, and the rest as a
    share of ``target``.
    """
    square, size = float(part @ part), float(target.norm())
    if not square or not size:
        return 0.0, 0.0 if not size else 1.0
    factor = float(target @ part) / square
    return factor, float((target - factor * part).norm()) / size


def factors(target: Tensor, own: Tensor) -> list[float] | None:
    """Return the factor of each rank's own gradient in ``target``; None if they do not
    explain it, or are too alike to be told apart.
    """
    singular = torch.linalg.svdvals(own)
    apart = own.shape[0] <= own.shape[1] and singular[-1] > CONDITION * singular[0]
    if not apart or not target.norm():
        return None
    found = torch.linalg.lstsq(own.T, target[:, None]).solution.flatten()
    rest = (found @ own - target).norm() / target.norm()
    return found.tolist() if rest < CLOSE else None


def lacking(found: Sequence[float]) -> list[int]:
    """Return ranks whose gradient a sum with these factors lacks, if the others are in
    it alike; none if it has another pattern.
    """
    largest = max(map(abs, found))
    lacks = [r for r, factor in enumerate(found) if abs(factor) < CLOSE * largest]
    there = [factor for rank, factor in enumerate(found) if rank not in lacks]
    alike = max(there) - min(there) <= 5 * CLOSE * largest
    return lacks if alike else []
