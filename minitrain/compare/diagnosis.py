"""Where two runs diverge, and the probable cause, read from the pattern of it.

The first step that differs, and there the first thing: data, gradients, parameters,
buffers. A gradient that is wrong is written as a combination of the gradients that the
ranks computed on their own; the coefficients tell most faults apart. What fits no
pattern has the cause "unknown".
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from minitrain.proof.first_difference import Rows, first_difference, of_kind

What = Literal["data", "gradients", "parameters", "buffers"]
Tensors = Mapping[str, Tensor]

# the cause, asked for by step, thing and ranks that differ
Explain = Callable[[int, What, list[int]], str]

UNKNOWN = "unknown"
# of a fit: what rounding leaves, in float32
CLOSE = 1e-3


@dataclass(frozen=True)
class Values:
    """The tensors of one step: of each rank of the run, and of the replay.

    Each has ``before`` (parameters), ``gradients`` and ``after`` (parameters); the
    replay also ``own``: each rank's share of the right gradient, which is their sum.
    ``shares`` are the ranks' shares of the targets.
    """

    ranks: Sequence[Mapping[str, Any]]
    replay: Mapping[str, Any]
    shares: Sequence[float]


@dataclass(frozen=True)
class Divergence:
    """The first difference; ``ranks`` are those that differ from the replay."""

    step: int
    what: What
    tensor: str
    ranks: list[int] = field(default_factory=list)
    cause: str = UNKNOWN

    def __str__(self) -> str:
        where = f"step {self.step}: {self.what}"
        if self.tensor:
            where += f", tensor {self.tensor}"
        if self.ranks:
            where += f", rank {', '.join(map(str, self.ranks))}"
        return f"{where}; probable cause: {self.cause}"


def locate(run: Rows, replay: Rows, explain: Explain) -> Divergence | None:
    """The first difference between a run and its replay, from their recorded hashes.

    ``explain`` is asked for its cause. None where nothing differs.
    """
    ours, theirs = (of_kind(rows, "tensors") for rows in (run, replay))
    batches, wanted = (of_kind(rows, "batch") for rows in (run, replay))
    steps = sorted({row["step"] for row in (*ours, *batches)})
    for step in steps:
        batch, right = (_at(rows, step) for rows in (batches, wanted))
        if [row["sha256"] for row in batch] != [row["sha256"] for row in right]:
            ranks = _ranks_that_differ(batch[0], right[0])
            cause = cause_in_data(batch[0], right[0], batches)
            return Divergence(step, "data", "", ranks, cause)
        if found := first_difference(_at(ours, step), _at(theirs, step)):
            cause = explain(step, found.what, found.ranks)
            return Divergence(step, found.what, found.tensor, found.ranks, cause)
    return None


def _at(rows: Rows, step: int) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["step"] == step]


def _ranks_that_differ(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[int]:
    pairs = zip(ours["ranks"], theirs["ranks"], strict=False)
    return [rank for rank, (a, b) in enumerate(pairs) if a != b]


def cause_in_data(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], batches: Rows
) -> str:
    """Why a global batch has other samples than it should."""
    if ours["repeated"] > theirs["repeated"]:
        count = ours["repeated"] - theirs["repeated"]
        return f"samples that are duplicated ({count})"
    for before in batches:
        again = before["step"] < ours["step"] and before["sha256"] == ours["sha256"]
        if again:
            step = before["step"]
            return f"the batch of step {step} again: no new order for this epoch"
    if len(ours["ranks"]) != len(theirs["ranks"]):
        return "other samples, on unlike numbers of ranks"
    ranks = _ranks_that_differ(ours, theirs)
    if len(ranks) < len(theirs["ranks"]):
        return f"rank {', '.join(map(str, ranks))} reads other samples than its own"
    return "another order of the samples, on all ranks"


def cause_of(what: What, ranks: list[int], values: Values) -> str:
    """Why ``ranks`` differ from the replay, from the tensors of that step: a clause, or
    UNKNOWN. ``what`` is anything but ``data``.
    """
    if what == "buffers":
        return cause_in_buffers(ranks, len(values.ranks))
    if what == "parameters":
        return cause_in_step(ranks, values)
    return cause_in_gradients(ranks, values)


def cause_in_buffers(ranks: list[int], world_size: int) -> str:
    """Why buffers differ where gradients and parameters do not."""
    if ranks and 0 not in ranks and world_size > 1:
        return "rank 0's buffers are not broadcast before the forward pass"
    return UNKNOWN


def cause_in_step(ranks: list[int], values: Values) -> str:
    """Why parameters differ after a step that the gradients do not explain."""
    rank = ranks[0]
    moved, right = (
        _flat(_less(state["after"], state["before"]))
        for state in (values.ranks[rank], values.replay)
    )
    (factor,), rest = combination(moved, [right])
    world_size = len(values.ranks)
    if rest < CLOSE and not _near(factor, 1):
        if _near(factor, 1 / world_size):
            return "the learning rate is divided by the number of processes"
        return f"the learning rate is {factor:.3g} times what it should be"
    if rest >= CLOSE:
        return "the optimizer's own state is another one (not restored?)"
    return UNKNOWN


def cause_in_gradients(ranks: list[int], values: Values) -> str:
    """Why synchronized gradients are wrong."""
    starts = [_flat(rank["before"]) for rank in values.ranks]
    elsewhere = [
        rank
        for rank, start in enumerate(starts)
        if not torch.equal(start, _flat(values.replay["before"]))
    ]
    if elsewhere:
        names = ", ".join(map(str, elsewhere))
        return f"rank {names} starts from other weights: rank 0's were not broadcast"
    own = [_flat(one) for one in values.replay["own"]]
    found = {rank: _flat(values.ranks[rank]["gradients"]) for rank in ranks}
    if any(len(gradient) != len(own[0]) for gradient in found.values()):
        return UNKNOWN
    fits = {rank: combination(gradient, own) for rank, gradient in found.items()}
    alone = [rank for rank, fit in fits.items() if _only(rank, fit)]
    if alone == ranks:
        return f"ranks that keep their own gradients: {', '.join(map(str, alone))}"
    factors, rest = fits[ranks[0]]
    on_all = len(ranks) == len(values.ranks)
    if on_all and rest < CLOSE and (cause := _pattern(factors, values.shares)):
        return cause
    return _low_precision(found[ranks[0]], _flat(values.replay["gradients"]))


def cause_of_pair(
    ours: Tensors, theirs: Tensors, ranks: list[int], world_size: int
) -> str:
    """Why two runs have other gradients, where only those of rank 0 are kept."""
    if 0 not in ranks:
        names = ", ".join(map(str, ranks))
        return f"rank {names} only: it trains alone, or has other weights"
    a, b = _flat(ours), _flat(theirs)
    if a.shape != b.shape:
        return UNKNOWN
    (factor,), rest = combination(a, [b])
    if rest < CLOSE and not _near(factor, 1):
        if _near(factor, world_size):
            return f"{factor:.3g} times as large: summed instead of averaged"
        if _near(factor, 1 / world_size):
            return f"{factor:.3g} times as large: averaged twice"
        return f"{factor:.3g} times as large: a scaled loss"
    return _low_precision(a, b)


def cause_of_steps(ours: Mapping[str, Tensors], theirs: Mapping[str, Tensors]) -> str:
    """Why two runs have other parameters after a step with the same gradients: each has
    the parameters of rank 0 ``before`` and ``after`` it.
    """
    if any(state["before"].keys() != state["after"].keys() for state in (ours, theirs)):
        return UNKNOWN
    a, b = (_flat(_less(state["after"], state["before"])) for state in (ours, theirs))
    if a.shape != b.shape or not torch.equal(
        *(_flat(s["before"]) for s in (ours, theirs))
    ):
        return "other weights before the step"
    (factor,), rest = combination(a, [b])
    if rest < CLOSE and not _near(factor, 1):
        return f"a step {factor:.3g} times as long: another learning rate"
    return (
        UNKNOWN if rest < CLOSE else "another step from the same gradients: optimizer"
    )


def _pattern(factors: list[float], shares: Sequence[float]) -> str | None:
    world_size = len(factors)
    missing = [rank for rank, factor in enumerate(factors) if abs(factor) < CLOSE]
    if missing:
        names = ", ".join(map(str, missing))
        return f"the gradient of rank {names} is missing from the sum"
    if all(_near(factor, factors[0]) for factor in factors):
        factor = factors[0]
        if _near(factor, 1):
            return None
        if _near(factor, world_size):
            return f"{world_size} times the mean: summed instead of averaged"
        if _near(factor, 1 / world_size):
            return "divided by the number of processes twice"
        return f"{factor:.3g} times the mean: a scaled loss"
    equal = [1 / (world_size * share) if share else 0.0 for share in shares]
    if all(_near(a, b) for a, b in zip(factors, equal, strict=True)):
        return "a mean of means: each rank counts the same, however many targets it has"
    return None


def _low_precision(found: Tensor, right: Tensor) -> str:
    for dtype in (torch.bfloat16, torch.float16):
        lower = dtype.itemsize < found.element_size()
        if lower and _passes(found, dtype) and not _passes(right, dtype):
            name = str(dtype).removeprefix("torch.")
            return f"reduced in lower precision ({name})"
    gap = float((found.double() - right.double()).norm())
    if gap <= 1e-5 * float(right.double().norm()):
        return "rounding only: another order of summation, or other threads"
    return UNKNOWN


def _passes(values: Tensor, dtype: torch.dtype) -> bool:
    return torch.equal(values.to(dtype).to(values.dtype), values)


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


def _only(rank: int, fit: tuple[list[float], float]) -> bool:
    factors, rest = fit
    others = [abs(factor) for r, factor in enumerate(factors) if r != rank]
    return rest < CLOSE and max(others) < CLOSE and abs(factors[rank]) > CLOSE


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= CLOSE * max(1.0, abs(b))


def _less(a: Tensors, b: Tensors) -> dict[str, Tensor]:
    return {name: a[name] - b[name] for name in a}


def _flat(tensors: Tensors) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors.values()])
