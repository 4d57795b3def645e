"""Whether a recording is that of a twin: the same run, from a start one unit away.

A twin shows what rounding does. So one that is no twin would excuse anything: all but
the bits of parameters and gradients must be that of the run itself.
"""

import math
from collections.abc import Iterator
from pathlib import Path

from minitrain.compare.align import Place, apart, places_of, samples
from minitrain.compare.difference import rates_unlike, settings_unlike
from minitrain.compare.trajectory import Course, course_in
from minitrain.core.errors import UserError
from minitrain.recording.alarm import in_ranks
from minitrain.recording.format import Recording, read_recording

# units in the last place from which it may begin, each of a tensor's elements
UNITS = 8
# a step goes one way or the other, where the gradient is no more than noise
TIMES_STEP = 2.0


def read_twin(a: Recording, folder: Path) -> Recording:
    """The recording in ``folder``. UserError where it is no twin of ``a``."""
    twin = read_recording(folder)
    if not next(iter(twin.ranks.values())).header["twin"]:
        raise UserError(
            f"{folder}: is no twin; record {a.folder} again with MINITRAIN_TWIN=1"
        )
    if why := next(_unlike(a, twin), None):
        raise UserError(
            f"{folder}: is no twin of {a.folder}: {why}; must be the same run from a "
            "start one unit away"
        )
    return twin


def _unlike(a: Recording, twin: Recording) -> Iterator[str]:
    """What a twin of ``a`` would not have, the first before all else."""
    if twin.world_size != a.world_size:
        yield f"world_size {twin.world_size}, not {a.world_size}"
        return
    headers = (next(iter(one.ranks.values())).header for one in (a, twin))
    ours, theirs = (header["parameters"] for header in headers)
    if ours != theirs:
        yield "another model"
        return
    open_ended = [rank for rank, one in twin.ranks.items() if one.end is None]
    if left := sorted({*twin.missing, *open_ended}):
        yield f"it ends early on {in_ranks(left)}"
    for rank, one in a.ranks.items():
        lacks = sorted(key[1] for key in one.steps.keys() - twin.ranks[rank].steps)
        if lacks:
            yield f"it did not record step {lacks[0]}"
    courses: dict[int, Course] = {}
    places = places_of(a, twin, None)
    for place in places:
        if place.optimizer not in courses:
            courses[place.optimizer] = course_in(a, place.optimizer)
            yield from _far(place, courses[place.optimizer])
        if rates_unlike(place):
            yield f"other learning rates at step {place.step}"
        if settings_unlike(place):
            yield f"other settings of the optimizer at step {place.step}"
        if samples(place.a) != samples(place.b):
            yield f"other samples at step {place.step}"
    if not any(samples(place.a) for place in places):
        yield "no samples were recorded"


def _far(place: Place, course: Course) -> Iterator[str]:
    """Where the first step ends elsewhere than a unit and a step can take it."""
    a, twin = place.a[place.pairs[0][0]], place.b[place.pairs[0][1]]
    rate = max(a["lr"], default=0.0)
    for name, entry in a["parameters"].items():
        step = course.first_move.get(name, 0.0)
        if not course.linear:
            # Adam's is as long as the rate, for each element
            step = max(step, rate * math.sqrt(course.numel.get(name, 0)))
        limit = UNITS * course.eps.get(name, 0.0) * entry["norm"] + TIMES_STEP * step
        other = twin["parameters"].get(name)
        gap = apart(entry["sketch"], other["sketch"]) if other else math.inf
        if not gap <= limit:
            yield f"another start ({name})"
