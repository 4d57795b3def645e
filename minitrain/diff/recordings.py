"""Two recordings: the same computation, or the first step where they part, and why.

What is compared at a step, in this order: data, gradients, learning rates, parameters,
buffers, the optimizer's state. Bits where they are equal; else what rounding may do
(minitrain/diff/recording_limits.py). Other world sizes, versions and machines are no
difference by themselves.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from minitrain.core.errors import UserError
from minitrain.diff.recording_limits import course_of
from minitrain.diff.recording_places import Place, Row, samples
from minitrain.diff.recording_step import Comparer, StepCompared
from minitrain.diff.recording_unlike import Unlike
from minitrain.diff.recording_whole import (
    Lacking,
    alarms_in,
    asides_of,
    lacking,
    models_unlike,
    start_unlike,
)
from minitrain.recording.format import Recording, is_recording, read_recording

Verdict = Literal[
    "equal bits", "same computation within rounding", "undecided", "different"
]
SAME: tuple[Verdict, ...] = ("equal bits", "same computation within rounding")

__all__ = ["RecordingsCompared", "compare_recordings", "is_recording"]


@dataclass(frozen=True)
class RecordingsCompared:
    """What two recordings have in common, and what not.

    ``first`` is the first sure difference, and where there is none what cannot be
    decided; ``doubt`` is what could not be decided before it. ``broken`` says what
    makes a recording not whole, ``asides`` what is no difference, ``alarms`` what the
    rules of the recorder find in each.
    """

    verdict: Verdict
    first: Unlike | None
    doubt: Unlike | None
    steps: list[StepCompared]
    twin: bool
    only_in_a: list[str] = field(default_factory=list)
    only_in_b: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    asides: list[str] = field(default_factory=list)
    alarms: dict[str, list[str]] = field(default_factory=dict)

    @property
    def same(self) -> bool:
        """Whether both are the same computation, as far as it can be told."""
        return self.verdict in SAME


def compare_recordings(
    a: Path, b: Path, twin: Path | None = None
) -> RecordingsCompared:
    """Compare what runs ``a`` and ``b`` recorded, whatever their world sizes; ``twin``
    is the recording of a twin of ``a``.

    Raises UserError for a recording that cannot be read, for two that have no recorded
    step in common, and for a twin that is none of ``a``.
    """
    ours, theirs = read_recording(a), read_recording(b)
    places = _places(ours, theirs, None if twin is None else _twin_of(ours, twin))
    if not places:
        raise UserError(f"{a}: has no recorded step in common with {b}")
    steps = _compare(ours, theirs, places)
    headers = (next(iter(one.ranks.values())).header for one in (ours, theirs))
    found = [
        models_unlike(*headers),
        start_unlike(ours, theirs, steps[0]),
        *(step.first for step in steps),
    ]
    sure = next((one for one in found if one and one.sure), None)
    doubt = next((one for one in found if one and not one.sure), None)
    lacks = lacking("A", ours, theirs), lacking("B", theirs, ours)
    equal = ours.world_size == theirs.world_size and {s.mark for s in steps} == {"="}
    return RecordingsCompared(
        verdict=_verdict(sure, doubt, lacks, equal),
        first=sure or doubt,
        doubt=doubt if sure and doubt and doubt.step <= sure.step else None,
        steps=steps,
        twin=twin is not None,
        only_in_a=lacks[0].only,
        only_in_b=lacks[1].only,
        broken=[*lacks[0].broken, *lacks[1].broken],
        asides=asides_of(ours, theirs, steps),
        alarms={"A": alarms_in(ours), "B": alarms_in(theirs)},
    )


def _verdict(
    sure: Unlike | None,
    doubt: Unlike | None,
    lacks: tuple[Lacking, Lacking],
    equal: bool,
) -> Verdict:
    broken = any(one.broken for one in lacks)
    # what a recording lacks that ended early, it may have done
    if sure or (any(one.only for one in lacks) and not broken):
        return "different"
    if doubt or broken:
        return "undecided"
    return "equal bits" if equal else "same computation within rounding"


def _compare(a: Recording, b: Recording, places: list[Place]) -> list[StepCompared]:
    """Each optimizer has a course of its own."""
    rank = min(a.ranks)
    of_a = a.ranks[rank]
    versions = {one.header.get("torch") for r in (a, b) for one in r.ranks.values()}
    comparers: dict[int, Comparer] = {}
    steps = []
    for place in places:
        number = place.optimizer
        if number not in comparers:
            rows = [row for key, row in of_a.steps.items() if key[0] == number]
            rows.sort(key=lambda row: int(row["step"]))
            course = course_of(of_a.header, rows)
            comparers[number] = Comparer(course, len(versions) == 1)
        steps.append(comparers[number].compare(place))
    return steps


def _places(a: Recording, b: Recording, twin: Recording | None) -> list[Place]:
    """The recorded steps that the first rank of both has."""
    first = min(a.ranks), min(b.ranks)
    shared = a.ranks[first[0]].steps.keys() & b.ranks[first[1]].steps.keys()
    places = []
    for key in sorted(shared, key=lambda key: (key[1], key[0])):
        of_twin = twin and twin.ranks[min(twin.ranks)].steps.get(key)
        sizes = a.world_size, b.world_size
        place = Place(*key, _rows(a, key), _rows(b, key), sizes, of_twin or None)
        places += [place] if place.pairs else []
    return places


def _rows(recording: Recording, key: tuple[int, int]) -> dict[int, Row]:
    return {
        rank: one.steps[key]
        for rank, one in sorted(recording.ranks.items())
        if key in one.steps
    }


def _twin_of(a: Recording, folder: Path) -> Recording:
    twin = read_recording(folder)
    if not next(iter(twin.ranks.values())).header["twin"]:
        raise UserError(
            f"{folder}: is no twin; record {a.folder} again with MINITRAIN_TWIN=1"
        )
    places = _places(a, twin, None)
    same = twin.world_size == a.world_size and places
    if not same or any(samples(p.a) != samples(p.b) for p in places if p.complete):
        raise UserError(
            f"{folder}: is no twin of {a.folder}: another world size, steps or samples"
        )
    return twin
