"""What is to be said of two recordings as a whole: models, starts, what one lacks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from minitrain.diff.recording_places import Row, Rows, in_ranks, pairs_of
from minitrain.diff.recording_step import StepCompared
from minitrain.diff.recording_unlike import Unlike
from minitrain.recording.format import OfRank, Recording
from minitrain.recording.judge import Judge

# before the first step
START = -1
# in a header: what may differ between the same computation
MAY_DIFFER = ("world_size", "every", "torch", "threads", "device")
EARLY_STEPS = 3
SHOWN = 5


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
    return Unlike(START, "model", f"parameters: {much}", "another model", first)


def start_unlike(a: Recording, b: Recording, first: StepCompared) -> Unlike | None:
    """Where the start weights differ by more than rounding: then so do the parameters
    after the ``first`` step.
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
    ranks, cause = "", "another seed, or another checkpoint"
    if len(pairs) < len(unlike):
        side = [y if x == min(ours) or same_size else x for x, y in pairs]
        ranks, cause = in_ranks(side), "weights that are not broadcast"
    much = f"{len(names)} of {len(ours[pairs[0][0]]['start'])} tensors are unlike"
    return Unlike(START, "start weights", much, cause, names[0], ranks)


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
    whole.
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
    ours, theirs = (_keys(recording) for recording in (mine, other))
    every = next(iter(other.ranks.values())).header["every"]
    steps = sorted(
        step
        for number, step in ours - theirs
        if step < EARLY_STEPS or step % every == 0
    )
    only = [f"step {step}" for step in dict.fromkeys(steps)]
    for number, count in _ends(mine).items():
        fewer = _ends(other).get(number, count)
        if count > fewer and not steps:
            only.append(f"{count - fewer} steps after the first {fewer}")
    return Lacking(only, broken)


def _keys(recording: Recording) -> set[tuple[int, int]]:
    return {key for one in recording.ranks.values() for key in one.steps}


def _last(one: OfRank) -> int:
    return max((step for _, step in one.steps), default=START)


def _ends(recording: Recording) -> dict[str, int]:
    ends = [one.end["steps"] for one in recording.ranks.values() if one.end]
    return {
        key: max(e.get(key, 0) for e in ends) for key in {k for e in ends for k in e}
    }


def alarms_in(recording: Recording) -> list[str]:
    """What the rules find in a recording, and what they said while it was made."""
    ranks = [recording.ranks[rank] for rank in sorted(recording.ranks)]
    found = []
    if not recording.missing:
        judge = Judge()
        found += judge.see([one.header for one in ranks])
        for key in sorted(ranks[0].steps, key=lambda key: (key[1], key[0])):
            rows = [one.steps[key] for one in ranks if key in one.steps]
            if len(rows) == len(ranks):
                found += judge.see(rows)
        if all(one.end for one in ranks):
            found += judge.see([one.end for one in ranks if one.end])
    # by rule: each tells a fault once, where it began
    lines = {one.rule: one.line for one in found}
    for row in (row for one in ranks for row in one.alarms):
        lines.setdefault(row["rule"], row["line"])
    return [line.removeprefix("minitrain: ") for line in lines.values()]


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
    for side, recording in (("A", a), ("B", b)):
        rows = [row for one in recording.ranks.values() for row in one.steps.values()]
        if not any(batch for row in rows for batch in row["inputs"]):
            said.append(f"{side} recorded no samples: data is not compared")
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
