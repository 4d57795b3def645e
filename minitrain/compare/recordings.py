"""Comparison of two recordings: the first difference and its cause, if they differ.

The order at each step: data, gradients, learning rates and settings, parameters,
buffers, the optimizer's state. What is not equal to the bit must be within rounding
(minitrain/compare/distances.py). World sizes, versions and machines may differ.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from minitrain.compare import coverage
from minitrain.compare.align import places_of
from minitrain.compare.comparer import Comparer, StepCompared
from minitrain.compare.difference import Difference
from minitrain.compare.modules import ModulesCompared, compare_modules
from minitrain.compare.resume import Resumed, resumed_in
from minitrain.core.errors import UserError
from minitrain.core.progress import progress
from minitrain.recording.format import read_recording
from minitrain.recording.judge import alarms_in

RecordingsVerdict = Literal[
    "equal bits", "same computation within rounding", "undecided", "different"
]
SAME: tuple[RecordingsVerdict, ...] = ("equal bits", "same computation within rounding")


@dataclass(frozen=True)
class RecordingsCompared:
    """The result of comparing two recordings.

    ``first``: the first sure difference (rounding cannot explain it), or an unsure one
    that makes the verdict undecided; ``doubt``: if the verdict is different, an unsure
    one before ``first``, or without it. ``broken``: missing parts of a recording;
    ``unseen``: values not recorded, so not compared; ``asides``: expected differences.
    ``alarms``: findings of the recorder's rules by side; ``severe``: without notes on
    what may be intended. ``resumed``: the alignment if one run resumes the other.
    ``modules``: the first module that differs, if modules were recorded.
    """

    verdict: RecordingsVerdict
    first: Difference | None
    doubt: Difference | None
    steps: list[StepCompared]
    twin: bool
    only_in_a: list[str] = field(default_factory=list)
    only_in_b: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    asides: list[str] = field(default_factory=list)
    alarms: dict[str, list[str]] = field(default_factory=dict)
    severe: dict[str, list[str]] = field(default_factory=dict)
    resumed: Resumed | None = None
    modules: ModulesCompared | None = None

    @property
    def agree(self) -> bool:
        """Return whether both agree, to the bit or within rounding."""
        return self.verdict in SAME

    @property
    def same(self) -> bool:
        """Return whether both agree, without alarms."""
        return self.agree and not any(self.severe.values())


def compare_recordings(
    a: Path, b: Path, twin: Path | None = None, start: int | None = None
) -> RecordingsCompared:
    """Compare two recordings of any world sizes. ``twin``: the run ``a`` recorded from
    weights one rounding unit away, to separate rounding from a fault (``start`` is then
    ignored); ``start``: the step of ``a`` from which ``b`` resumes, found if None.
    Raises UserError if a recording cannot be read, no step is in both, several steps
    fit a resume, or ``twin`` is no twin of ``a``.
    """
    ours, theirs = read_recording(a), read_recording(b)
    alarms = {"A": alarms_in(ours), "B": alarms_in(theirs)}
    of_twin = None if twin is None else coverage.read_twin(ours, twin)
    resumed = None if of_twin else resumed_in(ours, theirs, start)
    ours, theirs = (resumed.a, resumed.b) if resumed else (ours, theirs)
    places = places_of(ours, theirs, of_twin)
    if not places:
        raise _nothing_in_common(a, b, resumed)
    versions = {one.header["torch"] for r in (ours, theirs) for one in r.ranks.values()}
    # each optimizer has a trajectory of its own
    comparers = {p.optimizer: Comparer(len(versions) == 1, resumed) for p in places}
    steps = [comparers[p.optimizer].compare(p) for p in progress(places, "steps")]
    unseen = coverage.unseen_in(ours, theirs, places)
    broken = coverage.broken_in("A", ours, theirs)
    broken += coverage.broken_in("B", theirs, ours)
    only = coverage.only_in(ours, theirs), coverage.only_in(theirs, ours)
    start_at = coverage.start_unlike(ours, theirs, steps[0])
    # steps after an open start decide nothing
    is_open = start_at is not None and not start_at.sure
    steps = [replace(s, mark="?", first=None) if is_open else s for s in steps]
    model = coverage.models_unlike(ours, theirs)
    found = [one for one in (model, start_at, *(s.first for s in steps)) if one]
    sure = next((one for one in found if one.sure), None)
    unsure = [one for one in found if not one.sure]
    doubt = next((one for one in unsure if not sure or one.step <= sure.step), None)
    if doubt and (unseen or resumed or broken):
        # a twin does not decide these
        doubt = replace(doubt, twin_decides=False)
    equal = ours.world_size == theirs.world_size and {s.mark for s in steps} == {"="}
    verdict: RecordingsVerdict = SAME[0] if equal else SAME[1]
    # a run whose recording ended early may have made the missing steps
    if sure or (any(only) and not broken and not is_open):
        verdict = "different"
    elif doubt or broken or unseen:
        verdict = "undecided"
    return RecordingsCompared(
        verdict=verdict,
        first=sure or (doubt if verdict == "undecided" else None),
        doubt=doubt if verdict == "different" else None,
        steps=steps,
        twin=twin is not None,
        only_in_a=only[0],
        only_in_b=only[1],
        broken=broken,
        unseen=unseen,
        asides=coverage.asides_of(ours, theirs, steps),
        resumed=resumed,
        alarms={side: [*lines] for side, lines in alarms.items()},
        severe={side: [*filter(of.get, of)] for side, of in alarms.items()},
        modules=compare_modules(places, steps),
    )


def _nothing_in_common(a: Path, b: Path, resumed: Resumed | None) -> UserError:
    since = f" from step {resumed.step} on" if resumed else ""
    line = f"{a}: has no recorded step in common with {b}{since}"
    return UserError(f"{line}; record with every=1")
