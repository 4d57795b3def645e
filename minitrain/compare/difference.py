"""What differs at a step apart from gradients and parameters: data, learning rates and
settings, buffers, the optimizer's state; and the probable cause of each.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from minitrain.compare.align import (
    Place,
    Row,
    Rows,
    apart,
    common,
    is_finite,
    ratio,
    samples,
)
from minitrain.compare.causes import UNKNOWN, cause_in_buffers, of_rate
from minitrain.compare.tolerances import CLOSE, SAME_RATE, limits_of
from minitrain.recording.rules_of_progress import settings_of

NOT_RESTORED = "the optimizer's own state is another one (not restored?)"
SETTINGS = "another optimizer, or another setting of it"
OTHER_SETTING = "the optimizer is made otherwise, or has other groups of parameters"
SCHEDULE = "another schedule, or other groups of parameters"
# training need not read a buffer: nothing else shows that it is wrong
UNREAD = (
    "what training need not read (a running mean, a moving average?) goes otherwise"
)
COUNTED = "a count, or a flag, that goes otherwise"


@dataclass(frozen=True)
class Unlike:
    """What differs at a step, by how ``much``, and the probable cause; not ``sure``
    where rounding might have come to it. ``since`` is the recorded step before;
    ``onwards`` says that it is so from here on, whatever comes, ``end`` that it is what
    came after the last recorded step, ``twin_decides`` that a twin of A would tell
    whether it is rounding.
    """

    step: int
    what: str
    much: str
    cause: str = UNKNOWN
    tensor: str = ""
    ranks: str = ""
    sure: bool = True
    since: int | None = None
    optimizer: int = 0
    onwards: bool = False
    end: bool = False
    twin_decides: bool = False


def at(place: Place, what: str, much: str, cause: str, **more: Any) -> Unlike:
    """What is unlike at this place."""
    more |= {"optimizer": place.optimizer, "end": place.end}
    return Unlike(place.step, what, much, cause, **more)


def cause_in_data(place: Place, before: Place | None) -> tuple[str, str]:
    """By how much the samples of a step differ, and why."""
    a, b = samples(place.a), samples(place.b)
    much = f"{(a & b).total()} of {a.total()} samples are the same"
    if a.total() != b.total():
        much += f", B has {b.total()}"
    return much, _of_data(place, before, a, b)


def _of_data(
    place: Place, before: Place | None, a: Counter[str], b: Counter[str]
) -> str:
    inputs = [samples(rows, "unlabelled") for rows in (place.a, place.b)]
    if inputs[0] and inputs[0] == inputs[1]:
        return "the labels are others, and the inputs the same"
    for side, rows, ours, theirs in (("B", place.b, b, a), ("A", place.a, a, b)):
        more = [ours[digest] for digest in ours - theirs]
        if more and min(more) > 1:
            return _of_duplicates(side, rows, more)
    if before is not None:
        for side, now, rows in (("B", b, before.b), ("A", a, before.a)):
            if now == samples(rows):
                again = f"{side} reads the batch of step {before.step} again"
                return f"{again}: no new order for this epoch?"
        if b == samples(before.a):
            return f"B reads what A reads at step {before.step}"
    if b < a or a < b:
        few, all_of_it = ("B", "A") if b < a else ("A", "B")
        return f"{few} reads a part of what {all_of_it} reads: another batch size"
    if a.total() != b.total():
        return "another global batch size"
    if not a & b:
        return "another order of the samples (seed?), or other inputs of the model"
    return "other samples among them"


def _of_duplicates(side: str, rows: Rows, counts: Sequence[int]) -> str:
    each = [samples({rank: row}) for rank, row in rows.items()]
    if len(each) > 1 and all(one == each[0] for one in each):
        return f"all ranks of {side} read the same samples: no sampler of their own"
    twice = sum(counts) - len(counts)
    return f"{side} reads {twice} samples again (padded to a multiple of the ranks?)"


def rates_unlike(place: Place) -> Unlike | None:
    """The first ranks with other learning rates."""
    unlike = [(x, y) for x, y in place.pairs if not _same_rates(place.a[x], place.b[y])]
    if not unlike:
        return None
    x, y = unlike[0]
    ours, theirs = (sorted({*row["lr"]}) for row in (place.a[x], place.b[y]))
    told = [", ".join(f"{r:.6g}" for r in one) or "none" for one in (ours, theirs)]
    cause = _of_rates(ours, theirs, place.world_sizes)
    much, ranks = " against ".join(told), place.named(unlike)
    return at(place, "learning rate", much, cause, ranks=ranks)


def _same_rates(a: Row, b: Row) -> bool:
    # group by group; where there are other groups, the same rates among them
    ours, theirs = a["lr"], b["lr"]
    if len(ours) != len(theirs):
        ours, theirs = sorted({*ours}), sorted({*theirs})
    return _same_setting(tuple(ours), tuple(theirs))


def _of_rates(
    ours: Sequence[float], theirs: Sequence[float], world_sizes: tuple[int, int]
) -> str:
    if len(ours) != len(theirs) or 0.0 in ours:
        return SCHEDULE
    ratios = [y / x for x, y in zip(ours, theirs, strict=True)]
    if max(ratios) - min(ratios) > CLOSE * abs(ratios[0]):
        return SCHEDULE
    return why_of_rate(ratios[0], world_sizes) or f"{ratios[0]:.4g} times as large"


def why_of_rate(factor: float, world_sizes: tuple[int, int]) -> str:
    """Which run has a rate that goes by the number of its processes, from how many
    times B's is that of A.
    """
    times = 1 / factor if factor else 0.0
    for side, by, size in (
        ("B's", factor, world_sizes[1]),
        ("A's", times, world_sizes[0]),
    ):
        if why := of_rate(by, size):
            return f"{side} {why}"
    return ""


def settings_unlike(place: Place) -> Unlike | None:
    """The first parameter that the optimizer has with other settings."""
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for x, y in place.pairs:
        a, b = settings_of(place.a[x]), settings_of(place.b[y])
        for name in common(a, b):
            for key in common(a[name], b[name]):
                if not _same_setting(a[name][key], b[name][key]):
                    found.setdefault((name, key), []).append((x, y))
    for (name, key), pairs in found.items():
        x, y = pairs[0]
        ours, theirs = (settings_of(r)[name][key] for r in (place.a[x], place.b[y]))
        much, ranks = f"{key} = {ours} against {theirs}", place.named(pairs)
        what = "optimizer settings"
        return at(place, what, much, OTHER_SETTING, tensor=name, ranks=ranks)
    return None


def _same_setting(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_same_setting, a, b))
    if isinstance(a, int | float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=SAME_RATE)
    return bool(a == b)


def state_unlike(place: Place, same_torch: bool) -> Iterator[Unlike]:
    """Where the optimizer's state has other bits, and all before it has not."""
    cause = f"{NOT_RESTORED}, or {SETTINGS}"
    of_a, of_b = (state_held(rows) for rows in (place.a, place.b))
    # another version may keep the same state in another form
    for name in {**of_a, **of_b} if same_torch else ():
        much, ranks = "other bits", ""
        if name not in of_a or name not in of_b:
            much = f"none in {'A' if name in of_b else 'B'}"
        else:
            a, b = of_a[name], of_b[name]
            # where ranks divide the state, part with part
            pairs = [(rank, rank) for rank in a if rank in b] or [(min(a), min(b))]
            unlike = [(y, y) for x, y in pairs if a[x] != b[y]]
            if not unlike:
                continue
            ranks = place.named(unlike)
        yield at(place, "optimizer state", much, cause, tensor=name, ranks=ranks)


def state_held(rows: Rows) -> dict[str, dict[int, str]]:
    """Hashes of what the optimizer keeps of each parameter, by rank."""
    found: dict[str, dict[int, str]] = {}
    for rank, row in rows.items():
        for name, digest in row["moments"].items():
            found.setdefault(name, {})[rank] = digest
    return found


def buffers_unlike(place: Place, exact: bool) -> Iterator[Unlike]:
    """The buffer that is farthest apart: where all before is equal to the bit by any
    other bit, and else by more than 16 bits round; one that is not finite in one alone
    is sure then.
    """
    found: dict[str, tuple[float, list[int]]] = {}
    for rank, _ in place.pairs:
        a, b = place.a[rank]["buffers"], place.b[rank]["buffers"]
        for name in {**a, **b}:
            x, y = a.get(name), b.get(name)
            share = math.inf
            if x and y and "norm" in x and "norm" in y:
                share = ratio(apart(x, y), max(x["norm"], y["norm"]))
            same = x and y and x["hash"] == y["hash"]
            if not same and (exact or share > limits_of(place).coarse):
                far, ranks = found.get(name, (0.0, []))
                found[name] = max(far, share), [*ranks, rank]
    if not found:
        return
    name = max(found, key=lambda one: found[one][0])
    share, ranks = found[name]
    entries = [rows[ranks[0]]["buffers"].get(name) for rows in (place.a, place.b)]
    counted = all(entry and "norm" not in entry for entry in entries)
    much = f"about {share:.2g} of its size apart"
    if math.isinf(share):
        much = "other numbers" if counted else "not in both, or not finite"
    much += f", and {len(found) - 1} more" if len(found) > 1 else ""
    finite = {
        bool(entry and ("norm" not in entry or is_finite(entry))) for entry in entries
    }
    cause = COUNTED if counted else UNREAD
    cause = cause_in_buffers(ranks, place.world_sizes[0]) if exact else cause
    more = {"tensor": name, "ranks": place.named([(rank, rank) for rank in ranks])}
    yield at(place, "buffers", much, cause, sure=exact or len(finite) == 2, **more)


def beside(rows: Rows) -> set[str]:
    """The digests of what stood beside the samples, however many ranks got it."""
    return {digest for row in rows.values() for digest in row["beside"] if digest}


def rest_is_equal(place: Place) -> bool:
    """Whether all but gradients and parameters is, as far as it must be."""
    if samples(place.a) != samples(place.b) or beside(place.a) != beside(place.b):
        return False
    # an optimizer's share of its state is of a rank's own
    own = place.same_size and (
        any(state_unlike(place, same_torch=True))
        or any(buffers_unlike(place, exact=True))
    )
    return not own and all(place.a[x]["lr"] == place.b[y]["lr"] for x, y in place.pairs)
