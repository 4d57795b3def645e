"""Two recordings: the same computation, or the first step where they part, and why.

What is compared at a step, in this order: data, gradients, learning rates, parameters,
buffers, the optimizer's state. Bits where they are equal; else what rounding may do
(minitrain/compare/distances.py). Other world sizes, versions and machines are no
difference by themselves.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from minitrain.compare.align import header, places_of
from minitrain.compare.comparer import Comparer, StepCompared
from minitrain.compare.coverage import (
    asides_of,
    broken_in,
    models_unlike,
    only_in,
    read_twin,
    start_unlike,
    unseen_in,
)
from minitrain.compare.difference import Difference
from minitrain.compare.modules import ModulesCompared, compare_modules
from minitrain.compare.resume import Resumed, resumed_in
from minitrain.core.errors import UserError
from minitrain.core.progress import progress
from minitrain.recording.format import is_recording, read_recording
from minitrain.recording.rules import alarms_in

# ``minitrain/cli`` does not know the package ``recording``
__all__ = ["SAME", "RecordingsCompared", "compare_recordings", "is_recording"]

RecordingsVerdict = Literal[
    "equal bits", "same computation within rounding", "undecided", "different"
]
SAME: tuple[RecordingsVerdict, ...] = ("equal bits", "same computation within rounding")


@dataclass(frozen=True)
class RecordingsCompared:
    """The result of comparing two recordings.

    ``first`` is the first sure difference, and where there is none what cannot be
    decided; ``doubt`` is what could not be decided before it. ``broken`` says what
    makes a recording not whole, ``unseen`` what cannot be compared because it was
    not recorded, ``asides`` what is no difference, ``alarms`` what the rules of the
    recorder find in each, ``severe`` those of them that are more than notes;
    ``resumed`` is set where one run starts in the other, and is compared from there;
    ``modules`` is the first that differs, where they were recorded.
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
    def same(self) -> bool:
        """Return whether both are the same computation, and neither has an alarm."""
        return self.verdict in SAME and not any(self.severe.values())


def compare_recordings(
    a: Path, b: Path, twin: Path | None = None, start: int | None = None
) -> RecordingsCompared:
    """Compare what runs ``a`` and ``b`` recorded, of any world sizes; ``twin`` is the
    recording of a twin of ``a``, ``start`` the step of ``a`` at which ``b`` starts.
    Raises UserError for recordings that cannot be read or have no step in common.
    """
    ours, theirs = read_recording(a), read_recording(b)
    alarms = {"A": alarms_in(ours), "B": alarms_in(theirs)}
    of_twin = None if twin is None else read_twin(ours, twin)
    resumed = None if of_twin else resumed_in(ours, theirs, start)
    if resumed:
        ours, theirs = resumed.a, resumed.b
    places = places_of(ours, theirs, of_twin)
    if not places:
        raise _nothing_in_common(a, b, resumed)
    versions = {one.header["torch"] for r in (ours, theirs) for one in r.ranks.values()}
    # each optimizer has a trajectory of its own
    comparers = {
        number: Comparer(len(versions) == 1, resumed)
        for number in {place.optimizer for place in places}
    }
    steps = [comparers[p.optimizer].compare(p) for p in progress(places, "steps")]
    unseen = unseen_in(ours, theirs, places)
    broken = [*broken_in("A", ours, theirs), *broken_in("B", theirs, ours)]
    only = only_in(ours, theirs), only_in(theirs, ours)
    model = models_unlike(header(ours), header(theirs))
    start_at = start_unlike(ours, theirs, steps[0])
    # steps of a run that may start elsewhere decide nothing
    is_open = start_at is not None and not start_at.sure
    steps = [replace(s, mark="?", first=None) if is_open else s for s in steps]
    found = [one for one in (model, start_at, *(s.first for s in steps)) if one]
    sure = next((one for one in found if one.sure), None)
    doubt = next((one for one in found if not one.sure), None)
    if doubt and (unseen or resumed or broken):
        # what a twin does not decide
        doubt = replace(doubt, twin_decides=False)
    equal = ours.world_size == theirs.world_size and {s.mark for s in steps} == {"="}
    verdict: RecordingsVerdict = SAME[0] if equal else SAME[1]
    # what a recording lacks that ended early, it may have done
    if sure or (any(only) and not broken and not is_open):
        verdict = "different"
    elif doubt or broken or unseen:
        verdict = "undecided"
    return RecordingsCompared(
        verdict=verdict,
        first=sure or doubt,
        doubt=doubt if sure and doubt and doubt.step <= sure.step else None,
        steps=steps,
        twin=twin is not None,
        only_in_a=only[0],
        only_in_b=only[1],
        broken=broken,
        unseen=unseen,
        asides=asides_of(ours, theirs),
        resumed=resumed,
        alarms={side: [*lines] for side, lines in alarms.items()},
        severe={side: [*filter(of.get, of)] for side, of in alarms.items()},
        modules=compare_modules(places, steps),
    )


def _nothing_in_common(a: Path, b: Path, resumed: Resumed | None) -> UserError:
    if resumed is None:
        return UserError(f"{a}: has no recorded step in common with {b}")
    late, straight = (b, a) if resumed.side == "B" else (a, b)
    one = next(iter(resumed.whole.ranks.values()))
    counts = [step + 1 for number, step in one.steps if number == 0]
    last = max([*counts, (one.end or {"steps": {}})["steps"].get("0", 0)]) - 1
    if resumed.step > last:
        return UserError(
            f"{late}: starts at step {resumed.step} of {straight}, which ends after "
            f"step {last}, so no step is in both"
        )
    return UserError(
        f"{late}: starts at step {resumed.step} of {straight}, and no step from there "
        "on is in both; record with every=1, or resume at a multiple of every"
    )
