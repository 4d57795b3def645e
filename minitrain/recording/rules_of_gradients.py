"""Rules on gradients: equal on all ranks, and the mean of the ranks' own gradients.

A rank's own gradients ("own") are those before reduction ("gradients"). Factors with
which they make up the reduced one, by least squares, show the cause of a difference.
The key "before" has hashes of parameters as a step begins, unlike ``before``.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from minitrain.recording.alarm import (
    Alarm,
    Row,
    Rows,
    alarm,
    all_names,
    hashes,
    in_ranks,
    note,
    unless_all,
    unlike,
)
from minitrain.recording.fingerprint import BINS
from minitrain.recording.sketches import (
    Sketches,
    as_multiple,
    comparable,
    fit,
    joined,
    sketches,
    vector,
)

# relative rounding of a tensor: other hardware, or threads, may add in another order
ROUNDING = 1e-5
# relative residual of a fit: bfloat16 rounds as much
CLOSE = 1e-2
# a fit must be so many times better to be preferred to another
BETTER = 10
# beyond this condition number factors are meaningless
MOST_ALIKE = 100.0
# relative tolerance of the factor of a whole model: far above rounding; clipping seldom
# leads to a factor so close
NEAR = 2e-4
# relative tolerance of a tensor: above the rounding of a reduction in 16 bits
OFF = 0.05
SUMMED = "summed instead of averaged, unless the loss is divided by the ranks"
LOST = "a transfer that was lost, or a rank that was left out"


def gradients(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    """Check that the gradients of a step are equal on all ranks, and the mean of the
    ranks' own up to one factor (clipping, or a scaled loss). Yields alarms and notes.
    """
    tables = [hashes(row, "gradients") for row in rows]
    found = {n: unlike([t.get(n) for t in tables]) for n in all_names(tables)}
    differ = [name for name, ranks in found.items() if ranks]
    if not differ:
        yield from _mean(rows, before)
        return
    # a rank may differ alone in another tensor than the first
    ranks = max((found[name] for name in differ), key=len)
    what, cause, severe = _difference(rows, before, differ, ranks)
    if severe and (equal := _equal_after(rows, differ)):
        yield from _reduced_in_step(rows, before, equal)
        return
    where = {"ranks": ranks, "tensor": differ[0], "severe": severe}
    yield alarm(rows, "gradients", what, cause, **where)


def _mean(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    names = comparable(rows)
    together = sketches(rows, names)
    if len(rows) < 2 or together is None:
        return
    factor, rest = together.in_mean()
    if rest > CLOSE and (lost := _incomplete(rows, names)):
        yield lost
        return
    if rest <= CLOSE:
        yield from _by_number_of_ranks(rows, before, factor)
    yield from _otherwise(rows, names, together, factor)


def _equal_after(rows: Rows, names: Sequence[str]) -> list[str]:
    # find those that the step changes equally on all ranks, though gradients differ
    found = []
    for name in names:
        after = [hashes(row, "parameters").get(name) for row in rows]
        moved = after[0] is not None and after[0] != rows[0]["before"].get(name)
        moved = moved and all(name in row["gradients"] for row in rows)
        if moved and not unlike(after):
            found.append(name)
    return found


def _reduced_in_step(
    rows: Rows, before: Rows | None, equal: Sequence[str]
) -> Iterable[Alarm]:
    what = "ranks have other gradients and the same parameters after the step"
    what += f" ({len(equal)} such tensors)"
    cause = "the optimizer averages gradients, or shares its results, by itself"
    yield note(rows, "averaged in step", what, cause, tensor=equal[0])
    factor = _factor_of_step(rows, before, equal)
    if abs(factor - len(rows)) < CLOSE * len(rows):
        what = f"the step is {len(rows)} times the mean of the ranks' own: their sum"
        yield note(rows, "mean", what, SUMMED)


def _factor_of_step(rows: Rows, before: Rows | None, names: Sequence[str]) -> float:
    # return how far the parameters moved, in learning rates times the mean of the own
    # gradients; 0 if it is no such multiple (momentum, Adam), or its start is unknown
    rates, old = rows[0]["lr"], before[0]["parameters"] if before else {}
    known = [n for n in names if n in old and all(n in row["own"] for row in rows)]
    begins = rows[0]["before"]
    if len(rates) != 1 or not rates[0] or not known:
        return 0.0
    if any(old[name]["hash"] != begins[name] for name in known):
        return 0.0
    mean = torch.stack([vector(row, "own", known) for row in rows]).mean(0)
    moved = vector(rows[0], "parameters", known)
    moved -= joined({name: old[name]["sketch"] for name in known}, known)
    factor, rest = as_multiple(moved, mean)
    return -factor / rates[0] if rest < CLOSE else 0.0


def _otherwise(
    rows: Rows, names: list[str], together: Sketches, factor: float
) -> Iterable[Alarm]:
    # find tensors whose multiple of the mean is not the one of the whole model; all at
    # once, as one after the other they took a tenth of a recorded step
    shape = len(names), BINS
    gradient, own = together.gradients[0].reshape(shape), together.own
    own = own.reshape(-1, *shape)
    gaps = (gradient - factor * own.mean(0)).norm(dim=1)
    # own gradients may nearly cancel
    sizes = torch.maximum(gradient.norm(dim=1), abs(factor) * own.norm(dim=2).amax(0))
    off = (gaps > OFF * sizes).nonzero().flatten().tolist()
    if off:
        what = (
            f"{float(gaps[off[0]] / sizes[off[0]]):.1g} of itself off from "
            f"{factor:.3g} times the mean of the ranks' own, which all are together "
            f"({len(off)} of {len(names)} tensors)"
        )
        cause = "clipped by value, tensor or rank, or changed, mixed up or compressed"
        yield note(rows, "not the mean", what, cause, tensor=names[off[0]])


def _by_number_of_ranks(
    rows: Rows, before: Rows | None, factor: float
) -> Iterable[Alarm]:
    # a note, as a factor of the number of ranks, or one by it, may be intended
    world_size = len(rows)
    if _near(factor, world_size):
        what = f"{world_size} times the mean of the ranks' own: their sum"
        yield note(rows, "mean", what, SUMMED)
    # at two steps in a row: clipping may hit this factor once
    if _near(factor, 1 / world_size) and _near(_factor(before), 1 / world_size):
        what = f"1/{world_size} of the mean of the ranks' own"
        yield note(rows, "mean", what, "divided by the number of ranks twice")


def _factor(rows: Rows | None) -> float:
    together = None if rows is None else sketches(rows, comparable(rows))
    return 0 if together is None else together.in_mean()[0]


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= NEAR * abs(b)


def _incomplete(rows: Rows, names: list[str]) -> Alarm | None:
    alone = ((name, sketches(rows, [name])) for name in names)
    off = [n for n, s in alone if s and s.in_mean()[1] >= CLOSE]
    for together in _sets(off, len(rows)):
        found = sketches(rows, together)
        if found and (lacks := _lacking(found.gradients[0], found.own)):
            what = f"on all ranks a sum that lacks the gradient of {in_ranks(lacks)}"
            return alarm(rows, "mean", what, LOST, ranks=lacks, tensor=together[0])
    return None


def _sets(names: list[str], world_size: int) -> Iterator[list[str]]:
    # yield each alone, as factors may differ by tensor; then neighbours, as in a
    # bucket: so many that their sketches distinguish all ranks
    yield from ([name] for name in names)
    size = -(-2 * world_size // BINS)
    if size > 1:
        last = max(1, len(names) - size + 1)
        yield from (names[i : i + size] for i in range(last if names else 0))


def no_gradient(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    """Yield a note if a trained parameter has no gradient at this recorded step and the
    one before; an alarm if sharded gradients are never reduced.
    """
    tables = [
        [n for n in row["without_gradient"] if n in last["without_gradient"]]
        for row, last in zip(rows, before or (), strict=bool(before))
    ]
    counts = Counter(name for names in tables for name in names)
    still = [name for name, _ in counts.most_common()]
    if still:
        what = f"no gradient, again ({len(still)} such tensors)"
        cause = "not used in the forward pass, or cut off by detach or no_grad"
        # sharded gradients exist only after their reduction
        never = any(row.get("sharded") and not row["gradients"] for row in rows)
        if never:
            cause = "never reduced: set_requires_gradient_sync(False) in every pass"
        whom = [rank for rank, names in enumerate(tables) if still[0] in names]
        where = {"tensor": still[0], "severe": never}
        ranks = whom if len(rows) > 1 else []
        yield alarm(rows, "no gradient", what, cause, ranks=ranks, **where)


def _factors(target: Tensor, own: Tensor) -> list[float] | None:
    # return the factor of each rank's own gradient in ``target``; None if they do not
    # explain it, or are too similar. With as many numbers as factors any sum can be
    # written, but seldom without one of them
    found = fit(target, [*own], MOST_ALIKE, least=1)
    return found[0] if found and found[1] < CLOSE else None


def _lacking(target: Tensor, own: Tensor) -> list[int]:
    # return ranks whose gradient is not in ``target``, if the others have equal factors
    found = _factors(target, own) or [0.0]
    largest = max(map(abs, found))
    lacks = [r for r, factor in enumerate(found) if abs(factor) < CLOSE * largest]
    there = [factor for rank, factor in enumerate(found) if rank not in lacks]
    alike = max(there) - min(there) <= 5 * CLOSE * largest
    return lacks if alike else []


def _difference(
    rows: Rows, before: Rows | None, differ: Sequence[str], ranks: Sequence[int]
) -> tuple[str, str, bool]:
    # return how the gradients of ``ranks`` differ, why, and False for mere rounding;
    # ``differ`` are the tensors that are not equal on all ranks
    none = [rank for rank, row in enumerate(rows) if differ[0] not in row["gradients"]]
    if none:
        cause = "a submodule that only some ranks use, without a wrapper"
        return f"none on {in_ranks(none)}", cause, True
    found = sketches(rows, [name for name in comparable(rows) if name in {*differ}])
    share = f"{len(differ)} of {len(rows[0]['gradients'])} tensors"
    if found is None:
        return f"differ from the other ranks ({share})", "unknown", True
    alone = [r for r, row in enumerate(rows) if _keeps_its_own(row, found, r)]
    if {*ranks} <= {*alone}:
        cause = _not_synchronized(rows, before, differ, alone)
        return f"each keeps its own ({share})", cause, True
    usual = next(rank for rank in range(len(rows)) if rank not in ranks)
    factor, rest = as_multiple(found.gradients[ranks[0]], found.gradients[usual])
    if rest < ROUNDING and abs(factor - 1) < ROUNDING:
        cause = "other hardware, threads or libraries on ranks"
        return "apart by rounding", cause, False
    if rest < CLOSE:
        what = f"{factor:.3g} times the gradient of rank {usual}"
        cause = "clipped, or scaled, by a number of its own: use one of all ranks"
        return what, cause, True
    # the gradient of a rank may be missing from one of these
    for rank in [*ranks, usual]:
        if lacks := _lacking(found.gradients[rank], found.own):
            what = f"rank {rank} has a sum that lacks the gradient of {in_ranks(lacks)}"
            return what, LOST, True
    what = "no rank's own gradient, and no sum of them"
    cause = "parts that are mixed up (other order of the buckets), or damaged"
    return what, cause, True


def _keeps_its_own(row: Row, found: Sketches, rank: int) -> bool:
    # or keeps a multiple. If a wrapper averages, all may have read the same data
    least = ROUNDING if row["wrapper"] and row["synced"] else 0.0
    rest = as_multiple(found.gradients[rank], found.own[rank])[1]
    return rest < CLOSE and max(BETTER * rest, least) < found.in_mean(rank)[1]


def _not_synchronized(
    rows: Rows, before: Rows | None, differ: Sequence[str], alone: Sequence[int]
) -> str:
    row = rows[alone[0]]
    wrapper = row["wrapper"]
    if not wrapper:
        had = any(one["wrapper"] for one in before or ())
        return f"the model is called without a wrapper{', unlike before' * had}"
    if row["synced"] is False:
        return f"{wrapper} did not synchronize in the last pass: no_sync was on"
    if row["group"] == 1:
        return f"{wrapper} averages in a group of one rank"
    if spare := row["without_gradient"]:
        return f"{wrapper} waits for {spare[0]}, which has no gradient (not used?)"
    if len(alone) < len(rows):
        return "nothing came from the others: a transfer that was lost"
    was = before[0] if before else row
    trained = {*was["gradients"], *was["without_gradient"]}
    if len(differ) < len(row["gradients"]) or not trained & {*differ}:
        return f"replaced or trainable only after {wrapper} was built, or ignored by it"
    waits = f"{wrapper} waits for a parameter that was replaced"
    return f"{waits}, or its communication hook reduces nothing"


def synchronized_often(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    """Check that only one backward pass of a step synchronizes. Yields a note."""
    times = max(row.get("reductions", 0) for row in rows)
    if times > 1:
        what = f"gradients are synchronized {times} times, once is enough"
        cause = "gradients accumulated without no_sync"
        yield note(rows, "synchronization", what, cause)


def carried(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    """Yield an alarm if gradients include the previous step's: no ``zero_grad``."""
    if ranks := [rank for rank, row in enumerate(rows) if row.get("carried")]:
        names = rows[ranks[0]]["carried"]
        what = f"holds the gradient of the step before, too ({len(names)} such tensors)"
        where = {"ranks": unless_all(ranks, rows), "tensor": names[0]}
        yield alarm(rows, "zero_grad", what, "no zero_grad() after the step", **where)
