"""Run-level comparison of two recordings: models, start weights, validity of a twin
(run from weights one rounding unit away), missing steps, values, expected differences.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from minitrain.compare import align
from minitrain.compare.align import RankPairs, StepPair, header, samples
from minitrain.compare.comparer import StepCompared
from minitrain.compare.difference import START, Cause, Difference, What, why
from minitrain.compare.resume import passed_over
from minitrain.compare.step_causes import rates_unlike, settings_unlike
from minitrain.core.errors import UserError
from minitrain.recording.alarm import in_ranks, lacks
from minitrain.recording.format import OfRank, Recording, read_recording
from minitrain.recording.optimizers import FIRST_STEPS

# entries of a header that may differ for the same computation
MAY_DIFFER = ("world_size", "every", "torch", "threads", "device")


def read_twin(a: Recording, folder: Path) -> Recording:
    """Return the recording in ``folder``, a twin of ``a``: the same run from weights
    one rounding unit away.

    Raises:
        UserError: it cannot be read, is no twin, or differs from ``a`` in more than
            bits of parameters and gradients, so that a fault could pass as rounding.
    """
    twin = read_recording(folder)
    if reason := next(_no_twin(a, twin), None):
        raise UserError(
            f"{folder}: is no twin of {a.folder}: {reason}; must be the same run from "
            "a start one unit away"
        )
    return twin


def _no_twin(a: Recording, twin: Recording) -> Iterator[str]:
    # reasons why it is no twin of ``a``
    if not header(twin)["twin"]:
        yield "recorded without MINITRAIN_TWIN=1"
    if twin.world_size != a.world_size:
        yield f"world_size {twin.world_size}, not {a.world_size}"
    if header(a)["parameters"] != header(twin)["parameters"]:
        yield "another model"
    yield from broken_in("it", twin, a)
    yield from (f"it lacks {what}" for what in only_in(a, twin))
    places = align.places_of(a, twin, None)
    for place in places:
        if found := rates_unlike(place) or settings_unlike(place):
            yield f"another {found.what} at step {place.step}"
        if samples(place.a) != samples(place.b):
            yield f"other samples at step {place.step}"
    if not any(samples(place.a) for place in places):
        yield "no samples were recorded"


def models_unlike(a: Recording, b: Recording) -> Difference | None:
    """Return the difference between two models, or None: parameters in one only, of
    another shape, or trained in one only.
    """
    heads = header(a), header(b)
    ours, theirs = (head["parameters"] for head in heads)
    shared = [name for name in ours if name in theirs]

    def other(key: str) -> list[str]:
        return [name for name in shared if ours[name][key] != theirs[name][key]]

    found = {
        "only in A": [name for name in ours if name not in theirs],
        "only in B": [name for name in theirs if name not in ours],
        "of another shape": other("shape"),
        "trained in one only": other("trained"),
    }
    first = next((names[0] for names in found.values() if names), None)
    if first is None:
        return None
    much = ", ".join(f"{len(names)} {how}" for how, names in found.items() if names)
    cause = why(Cause.MODEL)
    for side, one in zip("AB", heads, strict=True):
        if tied := one.get("tied", {}).get(first):
            cause = why(Cause.TIED, tensor=first, other=tied, side=side)
    return Difference(START, What.MODEL, cause, f"parameters: {much}", first)


def start_unlike(a: Recording, b: Recording, first: StepCompared) -> Difference | None:
    """Return the difference in start weights, or None; also None if parameters are
    within rounding after the ``first`` step, or one run is a twin. The difference is
    not sure if one run may resume the other between two recorded steps.
    """
    heads = [{rank: one.header for rank, one in r.ranks.items()} for r in (a, b)]
    start = RankPairs(heads[0], heads[1], (a.world_size, b.world_size))
    unlike = {
        (x, y): _unlike_names(start.a[x]["start"], start.b[y]["start"])
        for x, y in start.pairs
    }
    pairs = [pair for pair, names in unlike.items() if names]
    is_twin = header(a)["twin"] or header(b)["twin"]
    if not pairs or first.parameters.within or is_twin:
        return None
    names, named = unlike[pairs[0]], start.named(pairs)
    cause = why(Cause.SEED)
    if named:
        cause = why(Cause.NOT_BROADCAST, ranks=named["ranks"])
    elif around := passed_over(a, b):
        side, step, last = around
        cause = why(Cause.PASSED_OVER, side=side, first=step, last=last)
    much = f"{len(names)} of {len(start.first[0]['start'])} tensors are unlike"
    named["sure"] = cause.cause != Cause.PASSED_OVER
    return Difference(START, What.START, cause, much, names[0], **named)


def _unlike_names(a: Mapping[str, str], b: Mapping[str, str]) -> list[str]:
    return [name for name in a if name in b and a[name] != b[name]]


def broken_in(side: str, mine: Recording, other: Recording) -> list[str]:
    """Return messages on what is missing in the recording ``mine`` (called ``side``):
    ranks, its end, or (if ``other`` has a different world size) steps of some ranks.
    """
    broken = [f"{side} {lacks(mine.missing, mine.folder)}"] if mine.missing else []
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
        # ranks that ended after fewer steps than another one
        less = [r for r, one in mine.ranks.items() if one.end and _more(whole, [one])]
        broken += [f"{side} has fewer steps on {in_ranks(less)}"] if less else []
    return broken


def only_in(mine: Recording, other: Recording) -> list[str]:
    """Return messages on steps of ``mine`` that ``other`` should have recorded, but did
    not: rank by rank, or for all ranks together if the world sizes differ.
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
    # steps of these ranks that the others should have made and recorded
    every, first = other[0].header["every"], other[0].header.get("first", {})
    recorded = [{key for one in ranks for key in one.steps} for ranks in (mine, other)]
    # a resumed run decides by its own number of a step if it is recorded
    own = {(n, s): s - first.get(n, 0) for n, s in sorted(recorded[0] - recorded[1])}
    due = [k for k, s in own.items() if s < FIRST_STEPS or s % every == 0]
    # else the largest number of steps of a rank, by optimizer
    counts, others = _ends(mine), _ends(other)
    return [f"step {step}{_of(number)}" for number, step in due] or [
        f"{count - others[key]} steps after the first {others[key]}{_of(int(key))}"
        for key, count in counts.items()
        if count > others.get(key, count)
    ]


def _of(optimizer: int) -> str:
    return f" of optimizer {optimizer}" if optimizer else ""


def _ends(ranks: Sequence[OfRank]) -> Counter[str]:
    found = Counter[str]()
    for one in ranks:
        found |= Counter(one.end["steps"] if one.end else {})
    return found


def unseen_in(a: Recording, b: Recording, places: Sequence[StepPair]) -> list[str]:
    """Return messages on values that were not recorded, and so are not compared."""
    notes = []
    ends = [one.end for r in (a, b) for one in r.ranks.values() if one.end is not None]
    blind = any("parameters" not in end for end in ends)
    for number in sorted({place.optimizer for place in places}):
        of = _of(number)
        here = [p for p in places if p.optimizer == number and not p.end]
        last = here[-1].step
        rows = [row for p in here for side in (p.a, p.b) for row in side.values()]
        if not any(row["gradients"] for row in rows):
            notes.append(f"no gradients{of} were recorded, so none are compared")
        # ranks without an end are not complete
        count = max((end["steps"].get(str(number), 0) for end in ends), default=0)
        if blind and (count > last + 1 or any("also" in row for row in rows)):
            notes.append(f"what came after step {last}{of} was not recorded")
    read = [
        any(samples(align.rows_at(r, key)) for key in align.keys_of(r)) for r in (a, b)
    ]
    if not all(read):
        where = " and ".join(s for s, of in zip("AB", read, strict=True) if not of)
        notes.append(f"no samples were recorded in {where}, so data is not compared")
    in_a, in_b = _also_in(a), _also_in(b)
    if only := sorted(in_a ^ in_b):
        where = f"{only[0]} in {'A' if only[0] in in_a else 'B'} alone"
        notes.append(f"`also` has other tensors ({where}), so not all are compared")
    return notes


def _also_in(recording: Recording) -> set[str]:
    rows = (row for one in recording.ranks.values() for row in one.steps.values())
    return {name for row in rows for name in row.get("also", ())}


def asides_of(a: Recording, b: Recording, steps: Sequence[StepCompared]) -> list[str]:
    """Return messages on expected differences, such as in world size or dtype."""
    heads = header(a), header(b)
    ours, theirs = (
        {key: head.get(key) for key in MAY_DIFFER}
        | {"types": "/".join(sorted({p["dtype"] for p in head["parameters"].values()}))}
        for head in heads
    )
    notes = [
        f"{key}: {ours[key]} in A, {theirs[key]} in B"
        for key in ours
        if ours[key] != theirs[key]
    ]
    notes += [f"{s} is a twin" for s, h in zip("AB", heads, strict=True) if h["twin"]]
    if _unlike_names(heads[0]["start"], heads[1]["start"]):
        notes.append("start weights: other bits")
    if _also_in(a) & _also_in(b) and any(step.mark in "~?" for step in steps):
        notes.append("modules given by `also` may differ: only equal bits are compared")
    return notes
