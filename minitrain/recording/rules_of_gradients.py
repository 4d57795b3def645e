"""Rules on gradients: the same on all ranks, and the mean of the ranks' own."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import torch

from minitrain.recording.alarm import (
    Alarm,
    Rows,
    alarm,
    all_names,
    hashes,
    in_ranks,
    note,
    unlike,
)
from minitrain.recording.fingerprint import BINS
from minitrain.recording.gradient_patterns import (
    APART,
    CLOSE,
    factors,
    lacking,
    of_unlike_gradients,
)
from minitrain.recording.sketches import Sketches, as_multiple, comparable, sketches

# of a whole model's factor: far above rounding, and a clipping seldom hits it
NEAR = 2e-4
# of a tensor: above what 16 bits in the reduction make of it
OFF = 0.05
SUMMED = "summed instead of averaged, unless the loss is divided by the ranks"


def gradients(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    """Gradients are equal on all ranks as the optimizer gets them, and the mean of the
    ranks' own, up to a factor that all tensors have: that of a clipping or of a scaled
    loss.
    """
    tables = [hashes(row, "gradients") for row in rows]
    found = {n: unlike([t.get(n) for t in tables]) for n in all_names(tables)}
    differ = [name for name, ranks in found.items() if ranks]
    if not differ:
        yield from _mean(rows, before)
        return
    # a rank may be alone in another tensor than the first
    ranks = max((found[name] for name in differ), key=len)
    what, cause = of_unlike_gradients(rows, before, differ, ranks)
    if what != APART and (equal := _equal_after(rows, differ)):
        yield from _averaged_in_step(rows, before, equal)
        return
    where = {"ranks": ranks, "tensor": differ[0], "severe": what != APART}
    yield alarm(rows, "gradients", what, cause, **where)


def _mean(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    names = comparable(rows)
    together = sketches(rows, names)
    if len(rows) < 2 or together is None:
        return
    factor, rest = together.in_mean()
    if rest > CLOSE:
        found = _lacking(rows, names) or _clipped(rows, together)
    else:
        found = _by_number_of_ranks(rows, before, factor)
    if found:
        yield found
    if rest <= CLOSE or not found:
        yield from _otherwise(rows, names, together, factor)


def _equal_after(rows: Rows, names: Sequence[str]) -> list[str]:
    # those that the step changes to the same on all ranks, though gradients differ
    found = []
    for name in names:
        after = [hashes(row, "parameters").get(name) for row in rows]
        moved = after[0] is not None and after[0] != rows[0]["before"].get(name)
        moved = moved and all(name in row["gradients"] for row in rows)
        if moved and not unlike(after):
            found.append(name)
    return found


def _averaged_in_step(
    rows: Rows, before: Rows | None, equal: Sequence[str]
) -> Iterable[Alarm]:
    what = (
        "ranks have other gradients and the same parameters after the step "
        f"({len(equal)} such tensors)"
    )
    cause = "the optimizer averages gradients, or shares its results, by itself"
    yield note(rows, "averaged in step", what, cause, tensor=equal[0])
    factor = _factor_of_step(rows, before, equal)
    if abs(factor - len(rows)) < CLOSE * len(rows):
        what = f"the step is {len(rows)} times the mean of the ranks' own: their sum"
        yield note(rows, "mean", what, SUMMED)


def _factor_of_step(rows: Rows, before: Rows | None, names: Sequence[str]) -> float:
    # how many times the mean of the own gradients a step is, in learning rates; 0
    # where it is no multiple of it, or where the step before is not recorded
    rates, old = rows[0]["lr"], before[0]["parameters"] if before else {}
    known = [n for n in names if n in old and all(n in row["own"] for row in rows)]
    begins = rows[0]["before"]
    if len(rates) != 1 or not rates[0] or not known:
        return 0.0
    if any(old[name]["hash"] != begins[name] for name in known):
        return 0.0
    own = [[x for name in known for x in row["own"][name]] for row in rows]
    mean = torch.tensor(own, dtype=torch.float64).mean(0)
    pair = [
        [x for name in known for x in of[name]["sketch"]]
        for of in (rows[0]["parameters"], old)
    ]
    moved = torch.tensor(pair, dtype=torch.float64)
    factor, rest = as_multiple(moved[0] - moved[1], mean)
    return -factor / rates[0] if rest < CLOSE else 0.0


def _clipped(rows: Rows, together: Sketches) -> Alarm | None:
    # each rank's gradient is in the sum with another factor, below that of a mean; in
    # a mean of all samples it goes by the number of samples
    parts = factors(together.gradients[0], together.own)
    counts = [sum(map(len, row["inputs"])) for row in rows]
    if not parts or min(parts) <= 0 or max(parts) * len(rows) > 1 + CLOSE:
        return None
    by_count = [part / max(1, count) for part, count in zip(parts, counts, strict=True)]
    if max(by_count) - min(by_count) <= 5 * CLOSE * max(by_count):
        return None
    shown = ", ".join(f"{part * len(rows):.2g}" for part in parts)
    what = f"ranks in order are in the mean with {shown} of their gradient"
    cause = "clipped by each rank before the reduction: the norm of the mean is needed"
    return note(rows, "clipping", what, cause)


def _otherwise(
    rows: Rows, names: list[str], together: Sketches, factor: float
) -> Iterable[Alarm]:
    # tensors that are not as many times the mean as all are together; all at once: one
    # after the other they took a tenth of a recorded step
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
        cause = "clipped by value or by tensor, or changed, mixed up or compressed"
        yield note(rows, "not the mean", what, cause, tensor=names[off[0]])


def _by_number_of_ranks(rows: Rows, before: Rows | None, factor: float) -> Alarm | None:
    # a factor that is the number of ranks, or one by it, may be intended
    world_size = len(rows)
    if _near(factor, world_size):
        what = f"{world_size} times the mean of the ranks' own: their sum"
        return note(rows, "mean", what, SUMMED)
    # clipping may hit it once
    if _near(factor, 1 / world_size) and _near(_factor(before), 1 / world_size):
        what = f"1/{world_size} of the mean of the ranks' own"
        return note(rows, "mean", what, "divided by the number of ranks twice")
    return None


def _factor(rows: Rows | None) -> float:
    together = None if rows is None else sketches(rows, comparable(rows))
    return 0 if together is None else together.in_mean()[0]


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= NEAR * abs(b)


def _lacking(rows: Rows, names: list[str]) -> Alarm | None:
    alone = ((name, sketches(rows, [name])) for name in names)
    off = [n for n, s in alone if s and s.in_mean()[1] >= CLOSE]
    for together in _sets(off, len(rows)):
        found = sketches(rows, together)
        if found and (lacks := lacking(found.gradients[0], found.own)):
            what = f"on all ranks a sum that lacks the gradient of {in_ranks(lacks)}"
            cause = "a transfer that was lost, or a rank that was left out"
            where = {"ranks": lacks, "tensor": together[0]}
            return alarm(rows, "mean", what, cause, **where)
    return None


def _sets(names: list[str], world_size: int) -> Iterator[list[str]]:
    # each alone, which may have a factor of its own; then some that come after each
    # other, as in a bucket: so many that their numbers tell all ranks apart
    yield from ([name] for name in names)
    size = -(-2 * world_size // BINS)
    if size > 1:
        last = max(1, len(names) - size + 1)
        yield from (names[i : i + size] for i in range(last if names else 0))


def no_gradient(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    """A trained parameter has a gradient at one of two recorded steps in a row."""
    tables = [
        [n for n in row["without_gradient"] if n in last["without_gradient"]]
        for row, last in zip(rows, before or (), strict=bool(before))
    ]
    counts = Counter(name for names in tables for name in names)
    still = [name for name, _ in counts.most_common()]
    if still:
        what = f"no gradient, again ({len(still)} such tensors)"
        cause = "not used in the forward pass, or cut off by detach or no_grad"
        # where ranks hold parts, gradients are there only after their reduction
        never = any(row.get("sharded") and not row["gradients"] for row in rows)
        if never:
            cause = "never reduced: set_requires_gradient_sync(False) in every pass"
        whom = [rank for rank, names in enumerate(tables) if still[0] in names]
        where = {"tensor": still[0], "tensors": still, "severe": never}
        ranks = whom if len(rows) > 1 else []
        yield alarm(rows, "no gradient", what, cause, ranks=ranks, **where)
