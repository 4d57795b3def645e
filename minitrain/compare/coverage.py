"""What is to be said of two recordings as a whole: models, starts, what one lacks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from minitrain.compare.align import (
    Place,
    Row,
    Rows,
    apart,
    norm,
    pairs_of,
    samples,
)
from minitrain.compare.difference import Unlike, state_divided
from minitrain.compare.step import StepCompared
from minitrain.compare.tolerances import COARSE
from minitrain.recording.alarm import in_ranks
from minitrain.recording.findings import Judge
from minitrain.recording.format import OfRank, Recording

# before the first step
START = -1
# in a header: what may differ between the same computation
MAY_DIFFER = ("world_size", "every", "torch", "threads", "device")
EARLY_STEPS = 3


@dataclass(frozen=True)
class Lacking:
    """What the one recording has and the other should have, and why a recording is not
    whole.
    """

    only: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


def headers(recording: Recording) -> Rows:
    """The header of each rank."""
    return {rank: one.header for rank, one in recording.ranks.items()}


def models_unlike(a: Row, b: Row) -> Unlike | None:
    """Where the models do not have the same parameters."""
    ours, theirs = a["parameters"], b["parameters"]
    names = {
        "only in A": [name for name in ours if name not in theirs],
        "only in B": [name for name in theirs if name not in ours],
    }
    shared = [name for name in ours if name in theirs]
    for key, words in (
        ("shape", "of another shape"),
        ("trained", "trained in one only"),
    ):
        names[words] = [n for n in shared if ours[n][key] != theirs[n][key]]
    found = {words: names for words, names in names.items() if names}
    if not found:
        return None
    first = next(iter(found.values()))[0]
    much = ", ".join(f"{len(names)} {words}" for words, names in found.items())
    cause = "another model"
    for side, other in ((a, "A"), (b, "B")):
        if first in side.get("tied", {}):
            cause = f"{first} is tied to {side['tied'][first]} in {other} alone"
    return Unlike(START, "model", f"parameters: {much}", cause, first)


def start_unlike(a: Recording, b: Recording, first: StepCompared) -> Unlike | None:
    """Where the start weights differ by more than rounding: then so do the parameters
    after the ``first`` step. By no more than 16 bits is not sure.
    """
    ours, theirs = headers(a), headers(b)
    same_size = a.world_size == b.world_size
    unlike = {
        (x, y): _unlike_names(ours[x]["start"], theirs[y]["start"])
        for x, y in pairs_of(ours, theirs, same_size)
    }
    pairs = [pair for pair, names in unlike.items() if names]
    if not pairs or first.parameters.within or any(map(_is_twin, (ours, theirs))):
        return None
    names = unlike[pairs[0]]
    ranks, cause, sure = "", "another seed, or another checkpoint", True
    if len(pairs) < len(unlike):
        side = [y if x == min(ours) or same_size else x for x, y in pairs]
        ranks, cause = in_ranks(side), "weights that are not broadcast"
    elif _apart(a, b, pairs[0], first) <= COARSE[False]:
        cause, sure = "rounding, or weights that were kept in 16 bits?", False
    much = f"{len(names)} of {len(ours[pairs[0][0]]['start'])} tensors are unlike"
    return Unlike(START, "start weights", much, cause, names[0], ranks, sure)


def _apart(
    a: Recording, b: Recording, pair: tuple[int, int], at: StepCompared
) -> float:
    """How far weights are apart after a step, as a share of their size."""
    key = at.optimizer, at.step
    rows = a.ranks[pair[0]].steps.get(key), b.ranks[pair[1]].steps.get(key)
    if rows[0] is None or rows[1] is None:
        return math.inf
    ours, theirs = (row["parameters"] for row in rows if row)
    names = [name for name in ours if name in theirs]
    gaps = [apart(ours[name]["sketch"], theirs[name]["sketch"]) for name in names]
    size = math.hypot(*(norm(ours[name]) for name in names))
    return math.hypot(*gaps) / size if size > 0 else math.inf


def starts_alike(a: Recording, b: Recording) -> bool:
    """Whether the start weights are equal to the bit, on the first rank of either."""
    ours, theirs = headers(a), headers(b)
    return not _unlike_names(ours[min(ours)]["start"], theirs[min(theirs)]["start"])


def _unlike_names(a: Mapping[str, str], b: Mapping[str, str]) -> list[str]:
    return [name for name in a if name in b and a[name] != b[name]]


def _is_twin(of_ranks: Rows) -> bool:
    return bool(of_ranks[min(of_ranks)]["twin"])


def lacking(side: str, mine: Recording, other: Recording) -> Lacking:
    """What ``other`` should have as well, and how ``mine``, which is ``side``, is not
    whole. Rank r is held to rank r, or where there are not as many to all others of its
    own recording.
    """
    broken = []
    if mine.missing:
        broken.append(f"{side} lacks {in_ranks(mine.missing)}")
    early = [rank for rank, one in mine.ranks.items() if one.end is None]
    if early:
        last = min(_last(mine.ranks[rank]) for rank in early)
        of_all = len(early) == len(mine.ranks)
        which = "" if of_all else f" on {in_ranks(early)}"
        broken.append(f"{side} ends early{which}: nothing after step {last}")
    if mine.world_size == other.world_size:
        pairs = [
            (rank, [one], [other.ranks[rank]])
            for rank, one in mine.ranks.items()
            if rank in other.ranks
        ]
    else:
        pairs = [(0, [*mine.ranks.values()], [*other.ranks.values()])]
        broken += _uneven(side, mine)
    only: dict[str, list[int]] = {}
    for rank, ours, theirs in pairs:
        for what in _more(ours, theirs):
            only.setdefault(what, []).append(rank)
    return Lacking(
        [
            what if len(ranks) == len(pairs) else f"{what} on {in_ranks(ranks)}"
            for what, ranks in only.items()
        ],
        broken,
    )


def _more(mine: Sequence[OfRank], other: Sequence[OfRank]) -> list[str]:
    """What ranks did that the others should have done too."""
    every = other[0].header["every"]
    steps = sorted(
        step
        for _, step in _keys(mine) - _keys(other)
        if step < EARLY_STEPS or step % every == 0
    )
    if steps:
        return [f"step {step}" for step in dict.fromkeys(steps)]
    counts, others = _ends(mine), _ends(other)
    fewer = {key: others.get(key, count) for key, count in counts.items()}
    return [
        f"{count - fewer[key]} steps after the first {fewer[key]}"
        for key, count in counts.items()
        if count > fewer[key]
    ]


def _uneven(side: str, mine: Recording) -> list[str]:
    """Ranks that did less than another one of the same recording, and ended."""
    whole = [*mine.ranks.values()]
    keys, ends = _keys(whole), _ends(whole)
    less = [
        rank
        for rank, one in mine.ranks.items()
        if one.end and (keys - _keys([one]) or ends != _ends([one]))
    ]
    return [f"{side} has fewer steps on {in_ranks(less)}"] if less else []


def _keys(ranks: Sequence[OfRank]) -> set[tuple[int, int]]:
    return {key for one in ranks for key in one.steps}


def _last(one: OfRank) -> int:
    return max((step for _, step in one.steps), default=START)


def _ends(ranks: Sequence[OfRank]) -> dict[str, int]:
    ends = [one.end["steps"] for one in ranks if one.end]
    return {
        key: max(e.get(key, 0) for e in ends) for key in {k for e in ends for k in e}
    }


def unseen_in(a: Recording, b: Recording, places: Sequence[Place]) -> list[str]:
    """What nobody recorded, and so is equal without being so."""
    said = []
    for number in sorted({place.optimizer for place in places}):
        rows = [
            row
            for place in places
            if place.optimizer == number
            for row in (*place.a.values(), *place.b.values())
        ]
        if not any(row["gradients"] for row in rows):
            of = f" of optimizer {number}" if number else ""
            said.append(f"no gradients{of} were recorded, so none are compared")
    sides = [
        side
        for side, recording in (("A", a), ("B", b))
        if not any(
            samples({rank: row})
            for rank, one in recording.ranks.items()
            for row in one.steps.values()
        )
    ]
    if sides:
        where = " and ".join(sides)
        said.append(f"no samples were recorded in {where}, so data is not compared")
    return said


def alarms_in(recording: Recording) -> dict[str, bool]:
    """Lines of the rules, from the rows and from the run itself; True for alarms."""
    ranks = [recording.ranks[rank] for rank in sorted(recording.ranks)]
    found = []
    if not recording.missing:
        judge = Judge()
        found += judge.see([one.header for one in ranks])
        for key in ranks[0].steps:
            rows = [one.steps[key] for one in ranks if key in one.steps]
            if len(rows) == len(ranks):
                found += judge.see(rows)
        if all(one.end for one in ranks):
            found += judge.see([one.end for one in ranks if one.end])
    # of what was said while it was made, what the rows do not show: who did not come
    again = {(one.rule, one.severe) for one in found}
    lines = {one.line: one.severe for one in found}
    for row in (row for one in ranks for row in one.alarms):
        severe = row["kind"] == "alarm"
        if (row["rule"], severe) not in again:
            lines[row["line"]] = severe
    return {line.removeprefix("minitrain: "): severe for line, severe in lines.items()}


def asides_of(a: Recording, b: Recording, steps: Sequence[StepCompared]) -> list[str]:
    """What is no difference, and yet to be known."""
    ours, theirs = (next(iter(one.ranks.values())).header for one in (a, b))
    said = [
        f"{key}: {ours.get(key)} in A, {theirs.get(key)} in B"
        for key in MAY_DIFFER
        if ours.get(key) != theirs.get(key)
    ]
    said += [f"{s} is a twin" for s, h in (("A", ours), ("B", theirs)) if h["twin"]]
    said += _of_dtypes(ours, theirs)
    if not starts_alike(a, b):
        said.append("start weights: other bits")
    if a.world_size == b.world_size:
        said += state_divided(a, b)
    return said + _of_losses(a, b, steps)


def _of_dtypes(ours: Row, theirs: Row) -> list[str]:
    kinds = [
        "/".join(sorted({about["dtype"] for about in header["parameters"].values()}))
        for header in (ours, theirs)
    ]
    return [f"types: {kinds[0]} in A, {kinds[1]} in B"] if kinds[0] != kinds[1] else []


def _of_losses(a: Recording, b: Recording, steps: Sequence[StepCompared]) -> list[str]:
    """The first loss that was told unlike though all else is equal to the bit."""
    if a.world_size != b.world_size:
        return []
    for step in steps:
        key = step.optimizer, step.step
        for rank in sorted(a.ranks.keys() & b.ranks.keys()):
            rows = [r.ranks[rank].steps.get(key) for r in (a, b)]
            losses = [row["loss"] for row in rows if row and row["loss"] is not None]
            if step.mark == "=" and len({*losses}) > 1:
                where = f"step {step.step}, rank {rank}"
                return [f"losses told at {where}: {losses[0]} in A, {losses[1]} in B"]
    return []
