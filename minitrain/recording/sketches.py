"""Least squares on sketches: the factors with which tensors add up to another one.

The sketch of a sum is the sum of the sketches (fingerprint.py). Most faults of a
gradient show in the factors of ranks' own gradients.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minitrain.recording.alarm import Row, Rows

Fit = tuple[list[float], float]


def common(*rows: Mapping[str, object]) -> list[str]:
    """Return the names that are in all ``rows``, in the order of the first."""
    return [name for name in rows[0] if all(name in row for row in rows[1:])]


def norm(entry: Row) -> float:
    """Return the norm of a tensor, given its fingerprint."""
    return float(entry["norm"])


def is_finite(entry: Row) -> bool:
    """Return true if a tensor, given its fingerprint, has no NaN or infinity."""
    return all(map(math.isfinite, (entry["norm"], *entry["sketch"])))


def apart(a: Row, b: Row) -> float:
    """Return the approximate distance of two fingerprints; inf if not finite."""
    found = math.dist(a["sketch"], b["sketch"])
    return found if math.isfinite(found) else math.inf


def joined(parts: Mapping[str, Sequence[float]], names: Iterable[str]) -> Tensor:
    """Return the sketches of ``names`` as one float64 vector."""
    values = [value for name in names for value in parts[name]]
    return torch.tensor(values, dtype=torch.float64)


def vector(row: Row, kind: str, names: Iterable[str]) -> Tensor:
    """Return the sketches of ``names`` in ``row[kind]`` as one float64 vector."""
    if kind == "own":
        return joined(row[kind], names)
    return joined({name: row[kind][name]["sketch"] for name in names}, names)


def combination(target: Tensor, parts: Sequence[Tensor]) -> Fit:
    """Fit ``target`` by a sum of ``parts``, flat tensors of one length, in float64:
    return their factors and the residual, relative to the norm of ``target`` (infinity
    if one is not finite).
    """
    matrix = torch.stack([part.double() for part in parts], dim=1)
    wanted = target.double()
    if not (matrix.isfinite().all() and wanted.isfinite().all()):
        return [0.0] * len(parts), math.inf
    factors = torch.linalg.lstsq(matrix, wanted[:, None]).solution.flatten()
    # zero, not NaN, if both are zero
    rest = (matrix @ factors - wanted).norm() / wanted.norm().clamp_min(1e-300)
    return factors.tolist(), float(rest)


def fit(
    target: Tensor, parts: Sequence[Tensor], most_alike: float = 1e4, least: int = 2
) -> Fit | None:
    """Return the :func:`combination` of ``parts``; None if it is not determined:
    ``parts`` scaled to equal length have a condition number above ``most_alike``, or
    fewer than ``least`` elements per factor are not zero everywhere.
    """
    matrix = torch.stack([target, *parts], dim=1)
    if not parts or int(matrix.any(dim=1).sum()) < least * len(parts):
        return None
    sizes = matrix.norm(dim=0)
    if not (torch.isfinite(sizes).all() and (sizes > 0).all()):
        return None
    if len(parts) > 1 and torch.linalg.cond(matrix[:, 1:] / sizes[1:]) > most_alike:
        return None
    return combination(target, parts)


@dataclass(frozen=True)
class Sketches:
    """Sketches of some tensors at one step, one row per rank: ``gradients`` as the
    optimizer gets them, and the rank's ``own``, before reduction. Columns are equal.
    """

    gradients: Tensor
    own: Tensor

    def in_mean(self, rank: int = 0) -> tuple[float, float]:
        """Fit a rank's gradient by factor times mean: return factor and residual."""
        return as_multiple(self.gradients[rank], self.own.mean(0))


def comparable(rows: Rows) -> list[str]:
    """Return names of tensors whose gradient, own and reduced, every rank has."""
    return common(*(row.get(kind, {}) for kind in ("gradients", "own") for row in rows))


def sketches(rows: Rows, names: Sequence[str]) -> Sketches | None:
    """Return the sketches of ``names``; None without any, or if one is not finite."""
    both = [
        torch.stack([vector(row, kind, names) for row in rows])
        for kind in ("gradients", "own")
    ]
    is_whole = names and all(one.isfinite().all() for one in both)
    return Sketches(*both) if is_whole else None


def as_multiple(target: Tensor, part: Tensor) -> tuple[float, float]:
    """Fit ``target`` by a multiple of ``part``: return factor and relative residual."""
    if not (target.any() and part.any()):
        return 0.0, float(target.any())
    (factor,), rest = combination(target, [part])
    return factor, rest
