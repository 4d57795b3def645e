"""What ranks read, and the random numbers they draw."""

from collections import Counter

from minitrain.recording.alarm import Alarm, Row, Rows, alarm, in_ranks


def samples(row: Row) -> list[str]:
    """The digests of all samples since the last step."""
    return [digest for batch in row.get("inputs", []) for digest in batch]


def beside(row: Row) -> list[str]:
    """The digests of what stood beside the samples, of each pass that had such."""
    return [digest for digest in row.get("beside", []) if digest]


def _read(row: Row) -> tuple[list[str], list[str]]:
    return samples(row), beside(row)


def same_samples(rows: Rows, before: Rows | None) -> list[Alarm]:
    """No two ranks read the same samples, none reads one twice, and all read as many.

    That all are the same is a fault. Data may hold the same sample several times, so
    that some are is worth a note where it is so at two recorded steps in a row.
    """
    read = [Counter(samples(row)) for row in rows]
    step = rows[0]["step"]
    if found := _twins(rows, before):
        first, ranks = found
        what = f"exactly the samples of rank {first}"
        cause = "data that is not divided among the ranks (no DistributedSampler?)"
        return [alarm("inputs", step, what, ranks=ranks, cause=cause)]
    notes = []
    if before is not None and (again := _several(rows, before)):
        notes.append(alarm("inputs", step, again, severe=False))
    counts = [sum(one.values()) for one in read]
    if len({*counts}) > 1:
        what = f"{', '.join(map(str, counts))} samples on ranks in order"
        cause = "the mean of the ranks' means is not that of all samples"
        notes.append(alarm("number of samples", step, what, cause=cause, severe=False))
    return notes


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
        if ranks and (len(one) > 1 or _twins_before(first, ranks, before, one)):
            return first, ranks
    return None


def _twins_before(
    first: int, ranks: list[int], before: Rows | None, one: Counter[str]
) -> bool:
    """A single sample may be the same by chance, but not another one before."""
    if before is None:
        return False
    was = Counter(samples(before[first]))
    alike = all(Counter(samples(before[rank])) == was for rank in ranks)
    return alike and was != one and bool(was)


def _times_read(row: Row) -> Counter[str]:
    """How often each sample is read in a step, or in a pass of it where several passes
    have one backward pass, as two views of a batch have.
    """
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
    if all(len({*_all(each)}) < sum(map(len, each)) for each in both):
        return "several ranks read the same sample at one step, as at the step before"
    return ""


def _all(read: list[Counter[str]]) -> list[str]:
    return [digest for one in read for digest in one]


def unread(rows: Rows, before: Rows | None) -> list[Alarm]:
    """What the forward pass is given can be read, on all ranks."""
    why = [row.get("unread", "") for row in rows]
    ranks = [rank for rank, one in enumerate(why) if one]
    if not ranks:
        return []
    what = f"samples are not recorded: {why[ranks[0]]}"
    whom = ranks if len(ranks) < len(rows) else []
    return [alarm("inputs", rows[0]["step"], what, ranks=whom, severe=False)]


def again(rows: Rows, before: Rows | None) -> list[Alarm]:
    """Not the batch of the recorded step before."""
    if before is None:
        return []
    pairs = enumerate(zip(rows, before, strict=True))
    ranks = [
        rank
        for rank, (row, last) in pairs
        if samples(row) and _read(row) == _read(last)
    ]
    return [batch_again(rows, ranks, before[0]["step"])] if ranks else []


def batch_again(rows: Rows, ranks: list[int], earlier: int) -> Alarm:
    """The note that ``ranks`` read what they read at an ``earlier`` step: in that
    order, so by no chance. Whoever overfits one batch means it.
    """
    step = rows[0]["step"]
    what = f"the batch of step {earlier} again"
    cause = "no new order for this epoch (set_epoch?)"
    if earlier + 1 == step:
        cause = "one batch on purpose, or loader workers with the same random state"
    whom = ranks if len(ranks) < len(rows) else []
    return alarm("same batch", step, what, ranks=whom, cause=cause, severe=False)


def random_numbers(rows: Rows, before: Rows | None) -> list[Alarm]:
    """Ranks that draw random numbers in the forward pass draw their own."""
    states: dict[str, list[int]] = {}
    for rank, row in enumerate(rows):
        if row.get("draws"):
            states.setdefault(row["random"], []).append(rank)
    same = next((ranks for ranks in states.values() if len(ranks) > 1), [])
    if not same:
        return []
    what = f"{in_ranks(same)} draw the same in the forward pass"
    if any(rows[rank].get("dropout") for rank in same):
        what = f"{in_ranks(same)} draw the same: dropout masks are alike on them"
    cause = "the same seed on ranks"
    step = rows[0]["step"]
    return [alarm("random numbers", step, what, cause=cause, severe=False)]


def shared_generators(rows: Rows, before: Rows | None) -> list[Alarm]:
    """Ranks whose loops use a global generator before two steps in a row, in the same
    state. Noise should differ on ranks; an order that is divided may be the same.
    """
    for name in ("torch", "NumPy", "random") if before else ():
        states: dict[str, list[int]] = {}
        for rank, pair in enumerate(zip(rows, before or (), strict=True)):
            if all(name in row.get("drawn", {}) for row in pair):
                states.setdefault(pair[0]["drawn"][name], []).append(rank)
        same = next((ranks for ranks in states.values() if len(ranks) > 1), [])
        if same:
            what = f"{in_ranks(same)} draw the same numbers before each step ({name}'s "
            what += "global generator)"
            cause = "the same seed on ranks: wrong for noise and augmentation, right "
            cause += "for an order that is divided"
            step = rows[0]["step"]
            return [alarm("shared seed", step, what, cause=cause, severe=False)]
    return []


def padding(rows: Rows, first: Rows) -> list[Alarm]:
    """Samples by which a sampler makes the ranks' shares equal: the last ranks end an
    epoch with the first samples of it, which ``first`` has.
    """
    starts = [samples(row)[:1] for row in first]
    ends = [samples(row)[-1:] for row in rows]
    for count in range(len(rows) - 1, 0, -1):
        is_new = samples(rows[0]) != samples(first[0])
        if is_new and starts[0] and ends[-count:] == starts[:count]:
            ranks = [*range(len(rows) - count, len(rows))]
            what = "ends with samples that the first ranks began with"
            cause = "DistributedSampler pads, as the ranks do not divide the samples"
            step = rows[0]["step"]
            return [
                alarm("padding", step, what, ranks=ranks, cause=cause, severe=False)
            ]
    return []
