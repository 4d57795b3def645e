"""What two runs come to after the last step that was recorded: parameters and buffers
at the end, held to each other as at one more step.
"""

from collections.abc import Sequence
from dataclasses import replace

from minitrain.compare.align import Place, Row, Rows, finite_as
from minitrain.recording.alarm import hashes
from minitrain.recording.format import Recording

KINDS = ("parameters", "buffers")


def ends_of(
    a: Recording, b: Recording, twin: Recording | None, places: Sequence[Place]
) -> list[Place]:
    """For each optimizer its last place, with what the runs came to after it. None
    where they did not, or made unlike numbers of steps.
    """
    last = {place.optimizer: place for place in places}
    return [end for place in last.values() if (end := _end(a, b, twin, place))]


def _end(
    a: Recording, b: Recording, twin: Recording | None, place: Place
) -> Place | None:
    of_a, of_b = _rows(a, place.a, place), _rows(b, place.b, place)
    counts = {row["count"] for row in (*of_a.values(), *of_b.values())}
    # what is missing on a rank is not guessed
    whole = of_a.keys() == place.a.keys() and of_b.keys() == place.b.keys()
    if not whole or len(counts) != 1:
        return None
    if _same(of_a, place.a) and _same(of_b, place.b):
        return None
    of_twin = place.twin and twin and _rows(twin, {min(twin.ranks): place.twin}, place)
    row = next(iter(of_twin.values())) if of_twin else None
    usable = row if row and finite_as(row, of_a) else None
    step = max(counts.pop() - 1, place.step)
    return replace(place, step=step, a=of_a, b=of_b, twin=usable, end=True)


def _rows(recording: Recording, rows: Rows, place: Place) -> dict[int, Row]:
    """The last row of each rank that has an end, as if it were one step later."""
    found: dict[int, Row] = {}
    for rank, row in rows.items():
        end = recording.ranks[rank].end
        if end is not None and "parameters" in end:
            kept = {
                n: end["parameters"].get(n, v) for n, v in row["parameters"].items()
            }
            found[rank] = {
                **row,
                "count": end["steps"].get(str(place.optimizer), 0),
                "parameters": kept,
                "buffers": end["buffers"],
                "before": {},
            }
    return found


def _same(ends: Rows, rows: Rows) -> bool:
    return all(
        hashes(ends[rank], kind) == hashes(rows[rank], kind)
        for rank in ends
        for kind in KINDS
    )


def unseen_ends(a: Recording, b: Recording, places: Sequence[Place]) -> list[str]:
    """Where steps came after the last that was recorded, and nobody saw what of them:
    of ranks that ended, since others are told to be not whole.
    """
    last = {place.optimizer: place.step for place in places}
    said = []
    for number, step in last.items():
        ends = [
            one.end for r in (a, b) for one in r.ranks.values() if one.end is not None
        ]
        counts = [end["steps"].get(str(number), 0) for end in ends]
        blind = any("parameters" not in end for end in ends)
        if blind and max(counts, default=0) > step + 1:
            of = f" of optimizer {number}" if number else ""
            said.append(f"what came after step {step}{of} was not recorded")
    return said
