"""What differs at a step: how it is said, and what is compared by its bits alone."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from minitrain.compare.align import (
    Place,
    Row,
    Rows,
    beside,
    common,
    of_pairs,
    samples,
)
from minitrain.compare.clauses import NOT_RESTORED, SETTINGS, cause_in_rates
from minitrain.compare.diagnosis import UNKNOWN
from minitrain.recording.alarm import in_ranks
from minitrain.recording.format import Recording
from minitrain.recording.rules_of_progress import settings_of

# rates that a float32 and a float64 hold
SAME_RATE = 1e-6
OTHER_SETTING = "the optimizer is made otherwise, or has other groups of parameters"


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


def rates_unlike(place: Place) -> Unlike | None:
    """The first ranks with other learning rates."""
    unlike = [(x, y) for x, y in place.pairs if not _same_rates(place.a[x], place.b[y])]
    if not unlike:
        return None
    x, y = unlike[0]
    much, cause = cause_in_rates(place.a[x], place.b[y], place.world_sizes)
    return at(place, "learning rate", much, cause, "", of_pairs(place, unlike))


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
        much = f"{key} = {ours} against {theirs}"
        of = of_pairs(place, pairs)
        return at(place, "optimizer settings", much, OTHER_SETTING, name, of)
    return None


def _same_setting(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_same_setting, a, b))
    if isinstance(a, int | float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=SAME_RATE)
    return bool(a == b)


def _same_rates(a: Row, b: Row) -> bool:
    """Group by group; where there are other groups, the same rates among them."""
    ours, theirs = a["lr"], b["lr"]
    if len(ours) != len(theirs):
        ours, theirs = sorted({*ours}), sorted({*theirs})
    return len(ours) == len(theirs) and all(
        math.isclose(p, q, rel_tol=SAME_RATE) for p, q in zip(ours, theirs, strict=True)
    )


def state_unlike(place: Place, same_torch: bool) -> Iterator[Unlike]:
    """Where the optimizer's state has other bits, and all before it has not."""
    cause = f"{NOT_RESTORED}, or {SETTINGS}"
    of_a, of_b = (_held(rows) for rows in (place.a, place.b))
    # another version may keep the same state in another form
    for name in {**of_a, **of_b} if same_torch else ():
        if name not in of_a or name not in of_b:
            much = f"none in {'A' if name in of_b else 'B'}"
            yield at(place, "optimizer state", much, cause, name, "")
        elif ranks := _ranks_unlike(of_a[name], of_b[name]):
            yield at(place, "optimizer state", "other bits", cause, name, ranks)


def _held(rows: Rows) -> dict[str, dict[int, str]]:
    """Hashes of what the optimizer keeps of each parameter, by rank."""
    found: dict[str, dict[int, str]] = {}
    for rank, row in rows.items():
        for name, digest in row["moments"].items():
            found.setdefault(name, {})[rank] = digest
    return found


def _ranks_unlike(a: Mapping[int, str], b: Mapping[int, str]) -> list[int]:
    """Rank r is held to rank r, or where ranks divide the state, part to part."""
    pairs = [(rank, rank) for rank in a if rank in b] or [(min(a), min(b))]
    return [y for x, y in pairs if a[x] != b[y]]


def state_divided(a: Recording, b: Recording) -> list[str]:
    """Where ranks keep a part of the optimizer's state each: what is compared."""
    said = []
    for side, recording in (("A", a), ("B", b)):
        for key in next(iter(recording.ranks.values())).steps:
            rows = {
                r: o.steps[key] for r, o in recording.ranks.items() if key in o.steps
            }
            held = _held(rows)
            if any(len(ranks) < len(rows) for ranks in held.values()):
                each = ", ".join(str(len(row["moments"])) for row in rows.values())
                said.append(
                    f"optimizer state: divided over the ranks of {side} ({each} of "
                    f"{len(held)} tensors), each part is compared where it is held"
                )
                break
    return said


def at(
    place: Place,
    what: str,
    much: str,
    cause: str,
    tensor: str,
    ranks: list[int] | str,
    sure: bool = True,
) -> Unlike:
    """What is unlike there, on ``ranks``."""
    if not isinstance(ranks, str):
        named = ranks and len(ranks) < len(place.pairs)
        ranks = in_ranks(ranks) if named else ""
    return Unlike(
        place.step,
        what,
        much,
        cause,
        tensor,
        ranks,
        sure,
        optimizer=place.optimizer,
        end=place.end,
    )


def rest_is_equal(place: Place) -> bool:
    """Whether all but gradients and parameters is, as far as it must be."""
    if samples(place.a) != samples(place.b) or beside(place.a) != beside(place.b):
        return False
    # an optimizer's share of its state is of a rank's own
    if place.same_size and any(state_unlike(place, same_torch=True)):
        return False
    return all(place.a[x]["lr"] == place.b[y]["lr"] for x, y in place.pairs)
