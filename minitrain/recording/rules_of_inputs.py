"""Rules on the samples that ranks read, and on the random numbers they draw."""

from collections import Counter
from collections.abc import Mapping

from minitrain.recording.alarm import (
    Alarm,
    Row,
    Rows,
    alarms,
    in_ranks,
    notes,
    unless_all,
)


def samples(row: Row) -> list[str]:
    """Return the digests of all samples since the last step."""
    return [digest for batch in row.get("inputs", []) for digest in batch]


def beside(row: Row) -> list[str]:
    """Return the digests of what stood beside the samples, of each pass that had it."""
    return [digest for digest in row.get("beside", []) if digest]


def same_samples(rows: Rows, before: Rows | None) -> list[Alarm]:
    """No two ranks read the same samples, none reads one twice, and all read as many.

    That all are the same is a fault. Data may hold the same sample several times, so
    that some are is worth a note where it is so at two recorded steps in a row.
    """
    if found := _twins(rows, before):
        first, ranks = found
        what = f"exactly the samples of rank {first}"
        cause = "data that is not divided among the ranks (no DistributedSampler?)"
        return alarms(rows, "inputs", what, cause, ranks=ranks)
    again = _several(rows, before) if before else ""
    found_notes = notes(rows, "inputs", again, "") if again else []
    counts = [len(samples(row)) for row in rows]
    if len({*counts}) > 1:
        what = f"{', '.join(map(str, counts))} samples on ranks in order"
        cause = "the mean of the ranks' means is not that of all samples"
        found_notes += notes(rows, "number of samples", what, cause)
    return found_notes


def _twins(rows: Rows, before: Rows | None) -> tuple[int, list[int]] | None:
    read = [Counter(samples(row)) for row in rows]
    # a table for all that stands first is taken for the samples: they are beside it
    more = [beside(row) for row in rows]
    for first, one in enumerate(read):
        ranks = [
            rank
            for rank in range(first + 1, len(read))
            if one and read[rank] == one and more[rank] == more[first]
        ]
        if ranks and (len(one) > 1 or _twins_before([first, *ranks], before, one)):
            return first, ranks
    return None


def _twins_before(ranks: list[int], before: Rows | None, one: Counter[str]) -> bool:
    # a single sample may be the same by chance, but not another one before
    was = [Counter(samples(before[rank])) for rank in ranks] if before else [one]
    return bool(was[0]) and was[0] != one and all(each == was[0] for each in was)


def _times_read(row: Row) -> Counter[str]:
    # in a step, or in a pass of it where several passes have one backward pass, as two
    # views of a batch have
    passes = [Counter(batch) for batch in row["inputs"]]
    if sum(map(bool, row["syncs"])) <= row.get("reductions", 1):
        return sum(passes, Counter())
    most: Counter[str] = Counter()
    for one in passes:
        most |= one
    return most


def _several(rows: Rows, before: Rows) -> str:
    # what a rank reads at both is no sample, but a table, or the batch again
    both: tuple[list[Counter[str]], list[Counter[str]]] = [], []
    for now, then in zip(rows, before, strict=True):
        counts = _times_read(now), _times_read(then)
        kept = {*counts[0]} & {*counts[1]}
        for each, count in zip(both, counts, strict=True):
            each.append(Counter({k: n for k, n in count.items() if k not in kept}))
    if all(any(max(one.values(), default=0) > 1 for one in each) for each in both):
        return "a rank reads a sample several times at one step, as at the step before"
    if all(
        max(Counter(k for c in each for k in c).values(), default=0) > 1
        for each in both
    ):
        return "several ranks read the same sample at one step, as at the step before"
    return ""


def unread(rows: Rows, before: Rows | None) -> list[Alarm]:
    """Inputs of the forward pass can be read on all ranks."""
    ranks = [rank for rank, row in enumerate(rows) if row.get("unread")]
    if not ranks:
        return []
    what = f"samples are not recorded: {rows[ranks[0]]['unread']}"
    return notes(rows, "inputs", what, "", ranks=unless_all(ranks, rows))


def again(rows: Rows, before: Rows | None) -> list[Alarm]:
    """No rank reads the batch of the recorded step before."""
    ranks = [
        rank
        for rank, (row, last) in enumerate(zip(rows, before or (), strict=bool(before)))
        if samples(row) and (samples(row), beside(row)) == (samples(last), beside(last))
    ]
    return batch_again(rows, ranks, before[0]["step"]) if before and ranks else []


def batch_again(rows: Rows, ranks: list[int], earlier: int) -> list[Alarm]:
    """Note that ``ranks`` read what they read at an ``earlier`` step: in that order, so
    by no chance. To overfit one batch may be intended.
    """
    what = f"the batch of step {earlier} again"
    cause = "no new order for this epoch (set_epoch?)"
    if earlier + 1 == rows[0]["step"]:
        cause = "one batch on purpose, or loader workers with the same random state"
    return notes(rows, "same batch", what, cause, ranks=unless_all(ranks, rows))


def _alike(states: Mapping[int, str]) -> list[int]:
    # the first ranks that have a state in common
    ranks: dict[str, list[int]] = {}
    for rank, state in states.items():
        ranks.setdefault(state, []).append(rank)
    return next((alike for alike in ranks.values() if len(alike) > 1), [])


def random_numbers(rows: Rows, before: Rows | None) -> list[Alarm]:
    """Ranks that draw random numbers in the forward pass draw their own."""
    draw = {rank: row["random"] for rank, row in enumerate(rows) if row.get("draws")}
    same = _alike(draw)
    if not same:
        return []
    what = f"{in_ranks(same)} draw the same in the forward pass"
    if any(rows[rank].get("dropout") for rank in same):
        what = f"{in_ranks(same)} draw the same: dropout masks are alike on them"
    return notes(rows, "random numbers", what, "the same seed on ranks")


def shared_generators(rows: Rows, before: Rows | None) -> list[Alarm]:
    """Loops do not use a global generator before two steps in a row, in the same state
    on several ranks. Noise should differ on ranks; an order that is divided may not.
    """
    for name in ("torch", "NumPy", "random") if before else ():
        pairs = enumerate(zip(rows, before or (), strict=True))
        use = [r for r, pair in pairs if all(name in o.get("drawn", {}) for o in pair)]
        same = _alike({rank: rows[rank]["drawn"][name] for rank in use})
        if same:
            what = f"{in_ranks(same)} draw the same numbers before each step ({name}'s "
            what += "global generator)"
            cause = "the same seed on ranks: wrong for noise and augmentation, right "
            cause += "for an order that is divided"
            return notes(rows, "shared seed", what, cause)
    return []


def padding(rows: Rows, first: Rows) -> list[Alarm]:
    """Note samples by which a sampler makes the ranks' shares equal: the last ranks end
    an epoch with the first samples of it, which ``first`` has.
    """
    starts = [samples(row)[:1] for row in first]
    ends = [samples(row)[-1:] for row in rows]
    if samples(rows[0]) == samples(first[0]) or not starts[0]:
        return []
    for count in range(len(rows) - 1, 0, -1):
        if ends[-count:] == starts[:count]:
            ranks = [*range(len(rows) - count, len(rows))]
            what = "ends with samples that the first ranks began with"
            cause = "DistributedSampler pads, as the ranks do not divide the samples"
            return notes(rows, "padding", what, cause, ranks=ranks)
    return []
