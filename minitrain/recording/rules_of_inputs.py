"""Rules on the samples that ranks read, and on the random numbers they draw."""

import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

from minitrain.recording.alarm import (
    Alarm,
    Row,
    Rows,
    alarm,
    in_ranks,
    note,
    unless_all,
)


def samples(row: Row) -> list[str]:
    """Return the digests of all samples since the last step."""
    return [digest for batch in row["inputs"] for digest in batch]


def beside(row: Row) -> list[str]:
    """Return the digests of what stood beside the samples, of each pass that had it."""
    return [digest for digest in row["beside"] if digest]


def same_samples(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    """No two ranks read the same samples, none reads one twice, and all read as many.

    That all are the same is a fault. Data may hold the same sample several times, so
    that some are is worth a note where it is so at two recorded steps in a row.
    """
    if found := _twins(rows, before):
        first, ranks = found
        what = f"exactly the samples of rank {first}"
        cause = "data that is not divided among the ranks (no DistributedSampler?)"
        yield alarm(rows, "inputs", what, cause, ranks=ranks)
        return
    if before and _repeats(rows, before) and _repeats(before, rows):
        what = "a sample is read several times at one step, as at the step before"
        yield note(rows, "inputs", what, "")
    counts = [len(samples(row)) for row in rows]
    if len({*counts}) > 1:
        what = f"{', '.join(map(str, counts))} samples on ranks in order"
        cause = "the mean of the ranks' means is not that of all samples"
        yield note(rows, "number of samples", what, cause)


def _twins(rows: Rows, before: Rows | None) -> tuple[int, list[int]] | None:
    # a table for all that stands first is taken for the samples: they are beside it
    now = [(sorted(samples(row)), beside(row)) for row in rows]
    was = [sorted(samples(row)) for row in before or ()]
    for first, one in enumerate(now):
        ranks = [r for r in range(first + 1, len(now)) if one[0] and now[r] == one]
        # a single sample may be the same by chance, but not another one before
        again = was and [one[0], []].count(was[first]) == 0
        if ranks and (
            len({*one[0]}) > 1 or (again and all(was[r] == was[first] for r in ranks))
        ):
            return first, ranks
    return None


def _repeats(rows: Rows, others: Rows) -> bool:
    # what is also read at the other step is no sample, but a table, or the batch again;
    # passes with one backward pass may read the same, as two views of a batch do
    known = {digest for row in others for digest in samples(row)}
    read: Counter[str] = Counter()
    for row in rows:
        views = sum(map(bool, row["syncs"])) > row.get("reductions", 1)
        together = operator.or_ if views else operator.add
        read += reduce(together, map(Counter, row["inputs"]), Counter())
    return any(count > 1 for digest, count in read.items() if digest not in known)


def unread(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    """Inputs of the forward pass can be read on all ranks."""
    ranks = [rank for rank, row in enumerate(rows) if row["unread"]]
    if ranks:
        what = f"samples are not recorded: {rows[ranks[0]]['unread']}"
        yield note(rows, "inputs", what, "", ranks=unless_all(ranks, rows))


def batch_again(rows: Rows, ranks: Sequence[int], earlier: int) -> Iterable[Alarm]:
    """Note that ``ranks`` read what they read at an ``earlier`` step: in that order, so
    by no chance. To overfit one batch may be intended.
    """
    what = f"the batch of step {earlier} again"
    cause = "no new order for this epoch (set_epoch?)"
    if earlier + 1 == rows[0]["step"]:
        cause = "one batch on purpose, or loader workers with the same random state"
    yield note(rows, "same batch", what, cause, ranks=unless_all(ranks, rows))


def _alike(states: Mapping[int, str]) -> list[int]:
    # the first ranks that have a state in common
    ranks: dict[str, list[int]] = {}
    for rank, state in states.items():
        ranks.setdefault(state, []).append(rank)
    return next((alike for alike in ranks.values() if len(alike) > 1), [])


def random_numbers(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    """Ranks that draw random numbers in the forward pass draw their own."""
    draw = {rank: row["random"] for rank, row in enumerate(rows) if row["draws"]}
    if same := _alike(draw):
        what = f"{in_ranks(same)} draw the same in the forward pass"
        if any(rows[rank].get("dropout") for rank in same):
            what += ": dropout masks are alike on them"
        yield note(rows, "random numbers", what, "the same seed on ranks")


def shared_generators(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    """Loops do not use a global generator before two steps in a row, in the same state
    on several ranks. Noise should differ on ranks; an order that is divided may not.
    """
    pairs = [*enumerate(zip(rows, before or (), strict=bool(before)))]
    for name in ("torch", "NumPy", "random"):
        use = [r for r, pair in pairs if all(name in o.get("drawn", {}) for o in pair)]
        if same := _alike({rank: rows[rank]["drawn"][name] for rank in use}):
            what = f"{in_ranks(same)} draw the same numbers before each step ({name}'s "
            what += "global generator)"
            cause = "the same seed on ranks: wrong for noise and augmentation, right "
            cause += "for an order that is divided"
            yield note(rows, "shared seed", what, cause)
            return


def padding(rows: Rows, first: Rows) -> Iterable[Alarm]:
    """Note samples by which a sampler makes the ranks' shares equal: the last ranks end
    an epoch with the first samples of it, which ``first`` has.
    """
    starts = [samples(row)[:1] for row in first]
    ends = [samples(row)[-1:] for row in rows]
    if samples(rows[0]) == samples(first[0]) or not starts[0]:
        return
    for count in range(len(rows) - 1, 0, -1):
        if ends[-count:] == starts[:count]:
            ranks = [*range(len(rows) - count, len(rows))]
            what = "ends with samples that the first ranks began with"
            cause = "DistributedSampler pads, as the ranks do not divide the samples"
            yield note(rows, "padding", what, cause, ranks=ranks)
            return
