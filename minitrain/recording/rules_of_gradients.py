"""Gradients: the same on all ranks, and the mean of the ranks' own."""

from collections import Counter
from collections.abc import Iterator, Sequence

import torch

from minitrain.recording.alarm import (
    Alarm,
    Rows,
    alarm,
    all_names,
    hashes,
    in_ranks,
    unlike,
)
from minitrain.recording.causes import APART, of_unlike_gradients
from minitrain.recording.fingerprint import BINS
from minitrain.recording.fits import (
    CLOSE,
    Sketches,
    comparable,
    factors,
    lacking,
    sketches,
    times,
)

# of a whole model's factor: far above rounding, and a clipping seldom hits it
NEAR = 2e-4
# of a tensor: above what 16 bits in the reduction make of it
OFF = 0.05
SUMMED = "summed instead of averaged, unless the loss is divided by the ranks"


def gradients(rows: Rows, before: Rows | None) -> list[Alarm]:
    """Equal on all ranks as the optimizer gets them."""
    tables = [hashes(row, "gradients") for row in rows]
    found = {n: unlike([t.get(n) for t in tables]) for n in all_names(tables)}
    differ = [name for name, ranks in found.items() if ranks]
    if not differ:
        return []
    # a rank may be alone in another tensor than the first
    ranks = max((found[name] for name in differ), key=len)
    what, cause = of_unlike_gradients(rows, before, differ, ranks)
    if what != APART and _equal_after(rows, differ):
        return _averaged_in_step(rows, before, differ)
    return [
        alarm(
            "gradients",
            rows[0]["step"],
            what,
            ranks=ranks,
            tensor=differ[0],
            cause=cause,
            severe=what != APART,
        )
    ]


def own_gradients(rows: Rows, before: Rows | None) -> list[Alarm]:
    """The mean of the ranks' own, up to a factor that all tensors have: that of a
    clipping or of a scaled loss.
    """
    names = comparable(rows)
    together = sketches(rows, names)
    if len(rows) < 2 or together is None or gradients(rows, before):
        return []
    factor, rest = times(together.gradients[0], together.mean)
    lacking = _lacking(rows, names) if rest > CLOSE else []
    clipped = _clipped(rows, together) if rest > CLOSE else []
    if lacking or clipped:
        return lacking or clipped
    by_number = _by_number_of_ranks(rows, before, factor) if rest <= CLOSE else []
    return by_number + _otherwise(rows, names, together, factor)


def _equal_after(rows: Rows, names: Sequence[str]) -> list[str]:
    """Those of ``names`` that the step changes to the same on all ranks, though their
    gradients differ.
    """
    found = []
    for name in names:
        after = [hashes(row, "parameters").get(name) for row in rows]
        moved = after[0] is not None and after[0] != rows[0]["before"].get(name)
        moved = moved and all(name in row["gradients"] for row in rows)
        if moved and not unlike(after):
            found.append(name)
    return found


def _averaged_in_step(
    rows: Rows, before: Rows | None, differ: Sequence[str]
) -> list[Alarm]:
    """Notes of an optimizer that averages by itself, and what its step shows of it."""
    step, equal = rows[0]["step"], _equal_after(rows, differ)
    what = (
        "ranks have other gradients and the same parameters after the step "
        f"({len(equal)} such tensors)"
    )
    cause = "the optimizer averages gradients, or shares its results, by itself"
    first = alarm(
        "averaged in step", step, what, tensor=equal[0], cause=cause, severe=False
    )
    factor = _factor_of_step(rows, before, equal)
    if not abs(factor - len(rows)) < CLOSE * len(rows):
        return [first]
    what = f"the step is {len(rows)} times the mean of the ranks' own: their sum"
    return [first, alarm("mean", step, what, cause=SUMMED, severe=False)]


def _factor_of_step(rows: Rows, before: Rows | None, names: Sequence[str]) -> float:
    """How many times the mean of the own gradients a step is, in learning rates; 0
    where it is no multiple of it, or where the step before is not recorded.
    """
    rates, old = rows[0]["lr"], {} if before is None else before[0]["parameters"]
    known = [n for n in names if n in old and all(n in row["own"] for row in rows)]
    begins = rows[0]["before"]
    if len(rates) != 1 or not rates[0] or not known:
        return 0.0
    if any(old[name]["hash"] != begins[name] for name in known):
        return 0.0
    new = rows[0]["parameters"]
    own = [[x for name in known for x in row["own"][name]] for row in rows]
    mean = torch.tensor(own, dtype=torch.float64).mean(0)
    pair = [[x for name in known for x in of[name]["sketch"]] for of in (new, old)]
    moved = torch.tensor(pair, dtype=torch.float64)
    factor, rest = times(moved[0] - moved[1], mean)
    return -factor / rates[0] if rest < CLOSE else 0.0


def _clipped(rows: Rows, together: Sketches) -> list[Alarm]:
    """A note where each rank's gradient is in the sum with another factor, below that
    of a mean; in a mean of all samples it goes by the number of samples.
    """
    parts = factors(together.gradients[0], together.own)
    counts = [sum(map(len, row["inputs"])) for row in rows]
    if not parts or min(parts) <= 0 or max(parts) * len(rows) > 1 + CLOSE:
        return []
    by_count = [part / max(1, count) for part, count in zip(parts, counts, strict=True)]
    if max(by_count) - min(by_count) <= 5 * CLOSE * max(by_count):
        return []
    shown = ", ".join(f"{part * len(rows):.2g}" for part in parts)
    what = f"ranks in order are in the mean with {shown} of their gradient"
    cause = "clipped by each rank before the reduction: the norm of the mean is needed"
    step = rows[0]["step"]
    return [alarm("clipping", step, what, cause=cause, severe=False)]


def touched(rows: Rows, before: Rows | None) -> list[Alarm]:
    """Gradients stay as they are between passes that are not synchronized."""
    names: list[str] = next(filter(None, (row.get("touched") for row in rows)), [])
    if not names or len(rows) < 2:
        return []
    what = f"changed between the passes of a step ({len(names)} such tensors)"
    cause = "clipped before the reduction: clip once, after the last pass"
    step, name = rows[0]["step"], names[0]
    return [alarm("clipping", step, what, tensor=name, cause=cause, severe=False)]


def _otherwise(
    rows: Rows, names: list[str], together: Sketches, factor: float
) -> list[Alarm]:
    """A note where tensors are not as many times the mean as all are together."""
    # all at once: one after the other they took a tenth of a recorded step
    shape = len(names), BINS
    gradient, own = together.gradients[0].reshape(shape), together.own
    own = own.reshape(-1, *shape)
    gaps = (gradient - factor * own.mean(0)).norm(dim=1)
    # own gradients may nearly cancel
    sizes = torch.maximum(gradient.norm(dim=1), abs(factor) * own.norm(dim=2).amax(0))
    are_off = (gaps > OFF * sizes).nonzero().flatten().tolist()
    off = {names[i]: float(gaps[i] / sizes[i]) for i in are_off}
    if not off:
        return []
    first = next(iter(off))
    what = (
        f"{off[first]:.1g} of itself off from {factor:.3g} times the mean of the "
        f"ranks' own, which all are together ({len(off)} of {len(names)} tensors)"
    )
    cause = (
        "clipped by value or by tensor, or changed, mixed up or compressed on all "
        "ranks alike"
    )
    step = rows[0]["step"]
    return [alarm("not the mean", step, what, tensor=first, cause=cause, severe=False)]


def _by_number_of_ranks(rows: Rows, before: Rows | None, factor: float) -> list[Alarm]:
    """A factor that is the number of ranks, or one by it: they may be meant."""
    world_size, step = len(rows), rows[0]["step"]
    if _near(factor, world_size):
        what = f"{world_size} times the mean of the ranks' own: their sum"
        return [alarm("mean", step, what, cause=SUMMED, severe=False)]
    # clipping may hit it once
    if _near(factor, 1 / world_size) and _near(_factor(before), 1 / world_size):
        what = f"1/{world_size} of the mean of the ranks' own"
        cause = "divided by the number of ranks twice"
        return [alarm("mean", step, what, cause=cause, severe=False)]
    return []


def _factor(rows: Rows | None) -> float:
    together = None if rows is None else sketches(rows, comparable(rows))
    return 0 if together is None else times(together.gradients[0], together.mean)[0]


def _lacking(rows: Rows, names: list[str]) -> list[Alarm]:
    for together in _sets(_not_the_mean(rows, names), len(rows)):
        found = sketches(rows, together)
        parts = None if found is None else factors(found.gradients[0], found.own)
        if parts and (lacks := lacking(parts)):
            what = f"on all ranks a sum that lacks the gradient of {in_ranks(lacks)}"
            cause = "a transfer that was lost, or a rank that was left out"
            step, tensor = rows[0]["step"], together[0]
            return [alarm("mean", step, what, ranks=lacks, tensor=tensor, cause=cause)]
    return []


def _not_the_mean(rows: Rows, names: list[str]) -> list[str]:
    found = ((name, sketches(rows, [name])) for name in names)
    return [n for n, s in found if s and times(s.gradients[0], s.mean)[1] >= CLOSE]


def _sets(names: list[str], world_size: int) -> Iterator[list[str]]:
    """Each alone, which may have a factor of its own; then some that come after each
    other, as in a bucket: so many that their numbers tell all ranks apart.
    """
    yield from ([name] for name in names)
    size = -(-2 * world_size // BINS)
    if size > 1:
        last = max(1, len(names) - size + 1)
        yield from (names[i : i + size] for i in range(last if names else 0))


def no_gradient(rows: Rows, before: Rows | None) -> list[Alarm]:
    """A trained parameter without one at two recorded steps in a row."""
    tables = [
        [n for n in row["without_gradient"] if n in last["without_gradient"]]
        for row, last in zip(rows, before or (), strict=bool(before))
    ]
    times = Counter(name for names in tables for name in names)
    still = [name for name, _ in times.most_common()]
    if not still:
        return []
    what = f"no gradient, again ({len(still)} such tensors)"
    cause = "not used in the forward pass, or cut off by detach or no_grad"
    # where ranks hold parts, gradients are there only after their reduction
    never = any(row.get("sharded") and not row["gradients"] for row in rows)
    if never:
        cause = "never reduced: set_requires_gradient_sync(False) in every pass"
    whom = [rank for rank, names in enumerate(tables) if still[0] in names]
    return [
        alarm(
            "no gradient",
            rows[0]["step"],
            what,
            ranks=whom if len(rows) > 1 else [],
            tensor=still[0],
            cause=cause,
            severe=never,
            tensors=still,
        )
    ]


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= NEAR * abs(b)
