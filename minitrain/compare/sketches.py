"""Rows of a recording, and arithmetic on the sketches of their tensors.

A sketch is linear in its tensor, and as long as it on average. So the distance of two
sketches estimates that of two tensors, and what is a sum of tensors is the same sum of
their sketches.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Row = Mapping[str, Any]
Rows = Mapping[int, Row]
Sketches = Mapping[str, Sequence[float]]


def common(*rows: Mapping[str, Any]) -> list[str]:
    """The names that all have, in the order of the first."""
    return [name for name in rows[0] if all(name in row for row in rows[1:])]


def norm(entry: Row) -> float:
    """The norm of a tensor, NaN where it has none."""
    return float(entry["norm"])


def is_finite(entry: Row) -> bool:
    """Whether a tensor has neither NaN nor infinity."""
    return all(map(math.isfinite, (entry["norm"], *entry["sketch"])))


def apart(a: Row, b: Row) -> float:
    """About how far two tensors are apart; infinitely, if one is not finite."""
    found = math.dist(a["sketch"], b["sketch"])
    return found if math.isfinite(found) else math.inf


def ratio(gap: float, size: float) -> float:
    """A gap as a share of ``size``; infinite where nothing has a size but the gap."""
    if size > 0:
        return gap / size
    return math.inf if gap else 0.0


def joined(parts: Sketches, names: Iterable[str]) -> Tensor:
    """The sketches of ``names`` as one vector."""
    values = [float(value) for name in names for value in parts[name]]
    return torch.tensor(values, dtype=torch.float64)


def vector(row: Row, kind: str, names: Iterable[str]) -> Tensor:
    """The same of a row's ``gradients`` or ``parameters``, or of its ``own``."""
    if kind == "own":
        return joined(row[kind], names)
    return joined({name: row[kind][name]["sketch"] for name in names}, names)


def combination(target: Tensor, parts: Sequence[Tensor]) -> tuple[list[float], float]:
    """Factors that bring the sum of ``parts`` nearest to ``target``, and what is left.

    Least squares in float64 (``torch.linalg.lstsq``) over flat tensors of one length;
    what is left is |rest| / |target|.
    """
    matrix = torch.stack([part.double() for part in parts], dim=1)
    wanted = target.double()
    factors = torch.linalg.lstsq(matrix, wanted[:, None]).solution.flatten()
    rest = (matrix @ factors - wanted).norm() / wanted.norm().clamp_min(1e-300)
    return factors.tolist(), float(rest)


def fit(target: Tensor, parts: Sequence[Tensor]) -> tuple[list[float], float] | None:
    """``combination``, where there are numbers enough to tell: not half as many factors
    as numbers, all of them finite, and no part that others make up.
    """
    if not parts or len(target) < 2 * len(parts):
        return None
    matrix = torch.stack([target, *parts], dim=1)
    sizes = matrix.norm(dim=0)
    if not (torch.isfinite(sizes).all() and (sizes > 0).all()):
        return None
    if len(parts) > 1 and torch.linalg.cond(matrix[:, 1:] / sizes[1:]) > 1e4:
        return None
    return combination(target, parts)


def samples(rows: Rows, kind: str = "inputs") -> Counter[str]:
    """The digests of all samples that these ranks read for one step."""
    batches = (batch for row in rows.values() for batch in row.get(kind, ()))
    return Counter(digest for batch in batches for digest in batch)


def same_samples(a: Rows, b: Rows) -> bool:
    """Whether two sets of rows read the same samples, padding aside."""
    ours, theirs = samples(a), samples(b)
    left, right = [*(ours - theirs).elements()], [*(theirs - ours).elements()]
    if len(left) != len(right):
        return False
    short = _unpadded(a) | _unpadded(b)
    for digest in left:
        like = next((one for one in right if _alike(digest, one, short)), None)
        if like is None:
            return False
        right.remove(like)
    return True


def _alike(a: str, b: str, short: Mapping[str, Sequence[str]]) -> bool:
    of_a, of_b = short.get(a, ()), short.get(b, ())
    # one of them is not padded, or both are, with the same element
    return a in of_b or b in of_a or bool(of_a and of_b and of_a[0] == of_b[0])


def _unpadded(rows: Rows) -> dict[str, Sequence[str]]:
    return {
        digest: short
        for row in rows.values()
        for batch, others in zip(row["inputs"], row.get("unpadded", ()), strict=False)
        for digest, short in zip(batch, others, strict=False)
    }
