"""What concerns two recordings as a whole: whether a twin is one, models, starts, what
one of them lacks, what is not compared, and what is no difference.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from minitrain.compare.align import (
    Place,
    Row,
    Rows,
    apart,
    header,
    keys_of,
    norm,
    pairs_of,
    places_of,
    rows_at,
    samples,
)
from minitrain.compare.difference import (
    Unlike,
    rates_unlike,
    settings_unlike,
    state_held,
)
from minitrain.compare.step import StepCompared
from minitrain.compare.tolerances import FLOAT32, Course, course_in
from minitrain.core.errors import UserError
from minitrain.recording.alarm import in_ranks
from minitrain.recording.findings import Judge
from minitrain.recording.format import OfRank, Recording, read_recording

# before the first step
START = -1
# in a header: what may differ between the same computation
MAY_DIFFER = ("world_size", "every", "torch", "threads", "device")
EARLY_STEPS = 3
# units in the last place from which a twin may begin, each of a tensor's elements; and
# a step goes one way or the other, where the gradient is no more than noise
UNITS, TIMES_STEP = 8, 2.0


def read_twin(a: Recording, folder: Path) -> Recording:
    """The recording in ``folder``; UserError where it is no twin of ``a``. One that is
    none would excuse anything: all but the bits of parameters and gradients must be
    that of the run itself.
    """
    twin = read_recording(folder)
    if not header(twin)["twin"]:
        raise UserError(
            f"{folder}: is no twin; record {a.folder} again with MINITRAIN_TWIN=1"
        )
    if why := next(_no_twin(a, twin), None):
        raise UserError(
            f"{folder}: is no twin of {a.folder}: {why}; must be the same run from a "
            "start one unit away"
        )
    return twin


def _no_twin(a: Recording, twin: Recording) -> Iterator[str]:
    # what a twin of ``a`` would not have, the first before all else
    if twin.world_size != a.world_size:
        yield f"world_size {twin.world_size}, not {a.world_size}"
        return
    if header(a)["parameters"] != header(twin)["parameters"]:
        yield "another model"
        return
    open_ended = [rank for rank, one in twin.ranks.items() if one.end is None]
    if left := sorted({*twin.missing, *open_ended}):
        yield f"it ends early on {in_ranks(left)}"
    for rank, one in a.ranks.items():
        if lacks := sorted(
            step for _, step in one.steps.keys() - twin.ranks[rank].steps
        ):
            yield f"it did not record step {lacks[0]}"
    places = places_of(a, twin, None)
    begun: set[int] = set()
    for place in places:
        if place.optimizer not in begun:
            begun.add(place.optimizer)
            yield from _far(place, course_in(a, place.optimizer))
        if rates_unlike(place):
            yield f"other learning rates at step {place.step}"
        if settings_unlike(place):
            yield f"other settings of the optimizer at step {place.step}"
        if samples(place.a) != samples(place.b):
            yield f"other samples at step {place.step}"
    if not any(samples(place.a) for place in places):
        yield "no samples were recorded"


def _far(place: Place, course: Course) -> Iterator[str]:
    # where the first step ends elsewhere than a unit and a step can take it
    a, twin = place.first
    rate = max(a["lr"], default=0.0)
    for name, entry in a["parameters"].items():
        step = course.first_move.get(name, 0.0)
        if not course.linear:
            # Adam's is as long as the rate, for each element
            step = max(step, rate * math.sqrt(course.numel.get(name, 0)))
        limit = UNITS * course.eps.get(name, 0.0) * norm(entry) + TIMES_STEP * step
        other = twin["parameters"].get(name)
        gap = apart(entry, other) if other else math.inf
        if not gap <= limit:
            yield f"another start ({name})"


def models_unlike(a: Row, b: Row) -> Unlike | None:
    """Where the models of two headers do not have the same parameters."""
    ours, theirs = a["parameters"], b["parameters"]
    shared = [name for name in ours if name in theirs]

    def other(key: str) -> list[str]:
        return [name for name in shared if ours[name][key] != theirs[name][key]]

    names = {
        "only in A": [name for name in ours if name not in theirs],
        "only in B": [name for name in theirs if name not in ours],
        "of another shape": other("shape"),
        "trained in one only": other("trained"),
    }
    found = {words: names for words, names in names.items() if names}
    if not found:
        return None
    first = next(iter(found.values()))[0]
    much = ", ".join(f"{len(names)} {words}" for words, names in found.items())
    cause = "another model"
    for side, one in (("A", a), ("B", b)):
        if first in one.get("tied", {}):
            cause = f"{first} is tied to {one['tied'][first]} in {side} alone"
    return Unlike(START, "model", f"parameters: {much}", cause, first)


def start_unlike(a: Recording, b: Recording, first: StepCompared) -> Unlike | None:
    """Where the start weights differ by more than rounding: then so do the parameters
    after the ``first`` step. By no more than 16 bits is not sure.
    """
    ours, theirs = _headers(a), _headers(b)
    same_size = a.world_size == b.world_size
    unlike = {
        (x, y): _unlike_names(ours[x]["start"], theirs[y]["start"])
        for x, y in pairs_of(ours, theirs, same_size)
    }
    pairs = [pair for pair, names in unlike.items() if names]
    is_twin = header(a)["twin"] or header(b)["twin"]
    if not pairs or first.parameters.within or is_twin:
        return None
    names = unlike[pairs[0]]
    ranks, cause, sure = "", "another seed, or another checkpoint", True
    if len(pairs) < len(unlike):
        side = [y if x == min(ours) or same_size else x for x, y in pairs]
        ranks, cause = in_ranks(side), "weights that are not broadcast"
    elif _apart(a, b, pairs[0], first) <= FLOAT32.coarse:
        cause, sure = "rounding, or weights that were kept in 16 bits?", False
    much = f"{len(names)} of {len(ours[pairs[0][0]]['start'])} tensors are unlike"
    return Unlike(START, "start weights", much, cause, names[0], ranks, sure)


def _headers(recording: Recording) -> Rows:
    return {rank: one.header for rank, one in recording.ranks.items()}


def _unlike_names(a: Mapping[str, str], b: Mapping[str, str]) -> list[str]:
    return [name for name in a if name in b and a[name] != b[name]]


def _apart(
    a: Recording, b: Recording, pair: tuple[int, int], at: StepCompared
) -> float:
    # how far weights are apart after a step, as a share of their size
    sides = zip((a, b), pair, strict=True)
    rows = [r.ranks[rank].steps.get((at.optimizer, at.step)) for r, rank in sides]
    if rows[0] is None or rows[1] is None:
        return math.inf
    ours, theirs = (row["parameters"] for row in rows if row)
    names = [name for name in ours if name in theirs]
    size = math.hypot(*(norm(ours[name]) for name in names))
    gaps = [apart(ours[name], theirs[name]) for name in names]
    return math.hypot(*gaps) / size if size > 0 else math.inf


def broken_in(side: str, mine: Recording, other: Recording) -> list[str]:
    """How ``mine``, which is ``side``, is not whole."""
    broken = []
    if mine.missing:
        broken.append(f"{side} lacks {in_ranks(mine.missing)}")
    early = [rank for rank, one in mine.ranks.items() if one.end is None]
    if early:
        last = min(
            max((step for _, step in mine.ranks[rank].steps), default=START)
            for rank in early
        )
        which = "" if len(early) == len(mine.ranks) else f" on {in_ranks(early)}"
        broken.append(f"{side} ends early{which}: nothing after step {last}")
    if mine.world_size != other.world_size:
        whole = [*mine.ranks.values()]
        keys, ends = _keys(whole), _ends(whole)
        # ranks that did less than another one, and ended
        less = [
            rank
            for rank, one in mine.ranks.items()
            if one.end and (keys - _keys([one]) or ends != _ends([one]))
        ]
        broken += [f"{side} has fewer steps on {in_ranks(less)}"] if less else []
    return broken


def only_in(mine: Recording, other: Recording) -> list[str]:
    """What ``other`` should have as well: rank by rank, or where there are not as many,
    all ranks together.
    """
    pairs = [(0, [*mine.ranks.values()], [*other.ranks.values()])]
    if mine.world_size == other.world_size:
        both = [rank for rank in mine.ranks if rank in other.ranks]
        pairs = [(rank, [mine.ranks[rank]], [other.ranks[rank]]) for rank in both]
    only: dict[str, list[int]] = {}
    for rank, ours, theirs in pairs:
        for what in _more(ours, theirs):
            only.setdefault(what, []).append(rank)
    return [
        what if len(ranks) == len(pairs) else f"{what} on {in_ranks(ranks)}"
        for what, ranks in only.items()
    ]


def _more(mine: Sequence[OfRank], other: Sequence[OfRank]) -> list[str]:
    every = other[0].header["every"]
    steps = {step for _, step in _keys(mine) - _keys(other)}
    due = sorted(step for step in steps if step < EARLY_STEPS or step % every == 0)
    if due:
        return [f"step {step}" for step in due]
    counts, others = _ends(mine), _ends(other)
    fewer = {key: others.get(key, count) for key, count in counts.items()}
    return [
        f"{count - fewer[key]} steps after the first {fewer[key]}"
        for key, count in counts.items()
        if count > fewer[key]
    ]


def _keys(ranks: Sequence[OfRank]) -> set[tuple[int, int]]:
    return {key for one in ranks for key in one.steps}


def _ends(ranks: Sequence[OfRank]) -> dict[str, int]:
    ends = [one.end["steps"] for one in ranks if one.end]
    return {
        key: max(e.get(key, 0) for e in ends) for key in {k for e in ends for k in e}
    }


def unseen_in(a: Recording, b: Recording, places: Sequence[Place]) -> list[str]:
    """What was not recorded, and so is equal without being so."""
    said = []
    last = {place.optimizer: place.step for place in places if not place.end}
    for number in sorted(last):
        of = f" of optimizer {number}" if number else ""
        rows = [
            r
            for p in places
            if p.optimizer == number
            for side in (p.a, p.b)
            for r in side.values()
        ]
        if not any(row["gradients"] for row in rows):
            said.append(f"no gradients{of} were recorded, so none are compared")
    sides = [
        side
        for side, recording in (("A", a), ("B", b))
        if not any(samples(rows_at(recording, key)) for key in keys_of(recording))
    ]
    if sides:
        where = " and ".join(sides)
        said.append(f"no samples were recorded in {where}, so data is not compared")
    # of ranks that ended; others are not whole
    ends = [one.end for r in (a, b) for one in r.ranks.values() if one.end is not None]
    for number, step in last.items():
        of = f" of optimizer {number}" if number else ""
        counts = [end["steps"].get(str(number), 0) for end in ends]
        blind = any("parameters" not in end for end in ends)
        if blind and max(counts, default=0) > step + 1:
            said.append(f"what came after step {step}{of} was not recorded")
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


def asides_of(a: Recording, b: Recording) -> list[str]:
    """What is no difference, and yet to be known."""
    ours, theirs = header(a), header(b)
    said = [
        f"{key}: {ours.get(key)} in A, {theirs.get(key)} in B"
        for key in MAY_DIFFER
        if ours.get(key) != theirs.get(key)
    ]
    said += [f"{s} is a twin" for s, h in (("A", ours), ("B", theirs)) if h["twin"]]
    kinds = [
        "/".join(sorted({about["dtype"] for about in one["parameters"].values()}))
        for one in (ours, theirs)
    ]
    if kinds[0] != kinds[1]:
        said.append(f"types: {kinds[0]} in A, {kinds[1]} in B")
    first_a, first_b = (r.ranks[min(r.ranks)].header["start"] for r in (a, b))
    if _unlike_names(first_a, first_b):
        said.append("start weights: other bits")
    if a.world_size == b.world_size:
        for side, recording in (("A", a), ("B", b)):
            said += _divided(side, recording)
    return said


def _divided(side: str, recording: Recording) -> list[str]:
    # where ranks keep a part of the optimizer's state each: what is compared
    for key in keys_of(recording):
        rows = rows_at(recording, key)
        held = state_held(rows)
        if any(len(ranks) < len(rows) for ranks in held.values()):
            each = ", ".join(str(len(row["moments"])) for row in rows.values())
            return [
                f"optimizer state: divided over the ranks of {side} ({each} of "
                f"{len(held)} tensors), each part is compared where it is held"
            ]
    return []
