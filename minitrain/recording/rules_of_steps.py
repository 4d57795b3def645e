"""Rules on what leads to a step: samples, passes, settings, modes, random numbers; and
that its numbers are finite.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

from minitrain.recording.alarm import (
    Alarm,
    Row,
    Rows,
    against,
    alarm,
    all_names,
    hashes,
    in_ranks,
    note,
    unless_all,
    unlike,
)

# a run of at most so many passes need not train: it tries or profiles a model
MOST_OF_A_TRIAL = 3


def samples(row: Row) -> list[str]:
    """Return the digests of all samples that a rank read for a step."""
    return [digest for batch in row["inputs"] for digest in batch]


def beside(row: Row) -> list[str]:
    """Return digests of inputs other than samples, one per pass that has any."""
    return [digest for digest in row["beside"] if digest]


def same_samples(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    """Check that ranks read different samples, and equally many. Yields an alarm if
    some read identical sets, and a note if the counts differ.
    """
    if found := _same_samples_on(rows, before):
        first, ranks = found
        what = f"exactly the samples of rank {first}"
        cause = "data that is not divided among the ranks (no DistributedSampler?)"
        yield alarm(rows, "inputs", what, cause, ranks=ranks)
    counts = [len(samples(row)) for row in rows]
    if len({*counts}) > 1:
        what = f"{', '.join(map(str, counts))} samples on ranks in order"
        cause = "the mean of the ranks' means is not the mean of all samples"
        yield note(rows, "number of samples", what, cause)


def _same_samples_on(rows: Rows, before: Rows | None) -> tuple[int, list[int]] | None:
    # compare other tensors, too: if the first one is a table, it is taken for samples
    now = [(sorted(samples(row)), beside(row)) for row in rows]
    was = [sorted(samples(row)) for row in before or ()]
    for first, one in enumerate(now):
        ranks = [r for r in range(first + 1, len(now)) if one[0] and now[r] == one]
        # a single sample may be the same by chance, but not another one before
        again = was and was[first] not in ([], one[0])
        again = again and all(was[rank] == was[first] for rank in ranks)
        if ranks and (again or len({*one[0]}) > 1):
            return first, ranks
    return None


def unread(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    """Check that inputs of the forward pass could be read. Yields a note."""
    ranks = [rank for rank, row in enumerate(rows) if row["unread"]]
    if ranks:
        what = f"samples are not recorded: {rows[ranks[0]]['unread']}"
        yield note(rows, "inputs", what, "", ranks=unless_all(ranks, rows))


def random_numbers(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    """Yield a note if ranks draw the same random numbers in the forward pass."""
    draw = {rank: row["random"] for rank, row in enumerate(rows) if row["draws"]}
    counts = Counter(draw.values())
    shared = next((state for state, count in counts.items() if count > 1), None)
    if same := [rank for rank, state in draw.items() if state == shared]:
        what = f"{in_ranks(same)} draw the same in the forward pass"
        cause = "the same seed on ranks; if the model has dropout, its masks are alike"
        yield note(rows, "random numbers", what, cause)


def forward_passes(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    """Yield a note if ranks made unequal numbers of forward passes since ``before``."""
    was = [row["forwards"] for row in before or ()] or [0] * len(rows)
    counts = [row["forwards"] - then for row, then in zip(rows, was, strict=True)]
    if ranks := unlike(counts):
        what = against([f"{n} forward passes for this step" for n in counts], ranks)
        cause = "different numbers of batches, or passes that are not of the training"
        through = [rows[rank] for rank in ranks]
        if any(sum(map(bool, o["syncs"])) > o.get("reductions", 0) for o in through):
            cause = (
                "a batch whose backward pass was skipped: from here on collectives "
                "average other batches than those that belong together"
            )
        yield note(rows, "steps", what, cause, ranks=ranks)


def learning_rates(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    """Check that learning rates are equal on all ranks. Yields an alarm."""
    if ranks := unlike([tuple(row["lr"]) for row in rows]):
        rates = [", ".join(f"{rate:.6g}" for rate in row["lr"]) for row in rows]
        cause = "a schedule that goes by what only one rank knows (its own loss?)"
        yield alarm(rows, "learning rates", against(rates, ranks), cause, ranks=ranks)


def settings(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    """Yield an alarm if optimizer settings of a parameter differ between ranks."""
    tables = [settings_of(row) for row in rows]
    for name in all_names(tables):
        have = [table.get(name, {}) for table in tables]
        for key in all_names(have):
            values = [one[key] for one in have if key in one]
            ranks = unlike(values)
            if ranks and len(values) == len(rows):
                what = f"{key} = {against(values, ranks)}"
                cause = "the optimizer is made otherwise on ranks"
                where = {"ranks": ranks, "tensor": name}
                yield alarm(rows, "optimizer settings", what, cause, **where)
                return


def settings_of(row: Row) -> dict[str, dict[str, Hashable]]:
    """Return the optimizer settings of each parameter, by the parameter's name."""
    found: dict[str, dict[str, Hashable]] = {}
    for group in row["groups"]:
        settings = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in group["settings"].items()
        }
        found |= dict.fromkeys(group["parameters"], settings)
    return found


def wrappers(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    """Yield a note if the model was wrapped again: the old wrapper's hooks are lost."""
    now = [row["wrapper_id"] for row in rows]
    was = [row["wrapper_id"] for row in before or ()] or [0] * len(rows)
    if any(new > max(old, 1) for new, old in zip(now, was, strict=True)):
        what = f"wrapper number {max(now)} of the model"
        yield note(rows, "wrapper", what, "wrapped another time (in the loop?)")


def not_finite(rows: Rows, before: Rows | None) -> Iterable[Alarm]:
    """Yield a note on NaN or infinity on all ranks; on some, other rules find it."""
    for kind in ("gradients", "parameters"):
        tables = [row[kind] for row in rows]
        names = [
            name
            for name in all_names(tables)
            if not any(math.isfinite(t[name]["norm"]) for t in tables if name in t)
        ]
        if names:
            what = f"NaN or infinity in {kind} ({len(names)} such tensors)"
            ranks = _not_finite_alone(rows) if kind == "gradients" else []
            if ranks:
                of_inputs = any(rows[rank].get("not_finite") for rank in ranks)
                what += f"; before the reduction only on {in_ranks(ranks)}, with "
                what += f"inputs that are {'not ' * of_inputs}finite"
            where = {"ranks": ranks, "tensor": names[0]}
            yield note(rows, "not finite", what, "overflow, or 0 / 0", **where)
            return


def _not_finite_alone(rows: Rows) -> list[int]:
    # return ranks whose own gradients are not finite; none if these are all ranks
    own = [[x for sketch in row["own"].values() for x in sketch] for row in rows]
    ranks = [n for n, one in enumerate(own) if not all(map(math.isfinite, one))]
    return ranks if len(ranks) < len(rows) else []


# judge.py and alarms_at_end call these, which look at more than two steps


def batch_again(rows: Rows, ranks: Sequence[int], earlier: int) -> Iterable[Alarm]:
    """Yield a note that ``ranks`` read the batch of step ``earlier`` in order again."""
    what = f"the batch of step {earlier} again"
    cause = "no new order for this epoch (set_epoch?)"
    if earlier + 1 == rows[0]["step"]:
        cause = "one batch on purpose, or loader workers with the same random state"
    yield note(rows, "same batch", what, cause, ranks=unless_all(ranks, rows))


def padding(rows: Rows, first: Rows) -> Iterable[Alarm]:
    """Yield a note if the last ranks end a step with samples that began the run."""
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


def unseen(ends: Rows, start: Rows) -> Iterable[Alarm]:
    """Yield a finding if a run has only steps, or only passes: others were missed."""
    # of several optimizers that step after one pass, each counts for itself
    steps = max(ends[0]["steps"].values(), default=0)
    passes = max(end["forwards"] for end in ends)
    if steps > passes:
        what = f"{steps} steps and {passes} forward passes of the training"
        cause = "the model is in eval(), or not called itself: data is not recorded"
        yield note(ends, "steps", what, cause)
    if passes and not steps:
        pairs = zip(ends, start, strict=False)
        still = all(hashes(end, "parameters") == first["start"] for end, first in pairs)
        severe = bool(start) and still and passes > MOST_OF_A_TRIAL
        what = f"{passes} passes and no step"
        what += ", and no parameter has changed" * severe
        cause = "no optimizer holds parameters of the model: made for a copy of it?"
        yield alarm(ends, "steps", what, cause, severe=severe)
