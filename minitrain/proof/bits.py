"""Checks without tolerance, mostly of a run with its replay: both sum in one order.

A rung is the result of one check; its verdict is BREACH if the check failed.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from minitrain.analysis.rungs import CheckVerdict, Reason, Rung, not_run, without_bits
from minitrain.proof.evidence import (
    Rows,
    Tensors,
    What,
    first_difference,
    hashes_of,
    of_kind,
)
from minitrain.proof.ulp import distance


def _breach(detail: str, gap: float | None = None) -> Rung:
    return Rung(False, None, gap, CheckVerdict.BREACH, detail)


SAME = Rung(True, None, None, CheckVerdict.EQUAL, "")


def ranks_rung(states: Sequence[Tensors]) -> Rung:
    """Return a rung: EQUAL if all final ``states`` are equal, NOT_RUN for one rank."""
    if len(states) < 2:
        return not_run(Reason.SINGLE_RANK)
    for rank, state in enumerate(states[1:], start=1):
        rung = bits_rung(states[0], state)
        if rung.verdict is CheckVerdict.BREACH:
            return replace(rung, detail=f"rank {rank}: {rung.detail}")
    return Rung(True, 0, 0.0, CheckVerdict.EQUAL, "")


def bits_rung(a: Tensors, b: Tensors) -> Rung:
    """Return a rung: EQUAL if ``a`` and ``b`` have equal bits, and no NaN."""
    apart = distance(a, b)
    # equal NaN bytes show only that both sides broke in the same way
    if apart.bytes_equal and (nan := first_nan(a)):
        return Rung(True, None, None, CheckVerdict.BREACH, f"tensor {nan} holds NaN")
    if apart.bytes_equal:
        return Rung(True, 0, 0.0, CheckVerdict.EQUAL, "")
    detail = f"tensor {apart.tensor} differs"
    return Rung(False, apart.max_ulp, apart.max_abs_diff, CheckVerdict.BREACH, detail)


def hashes_rung(run: Rows, other: Rows, what: What, world_size: int) -> Rung:
    """Return a rung: EQUAL if two runs recorded equal hashes of ``what`` at every step
    and each of ``world_size`` ranks, else BREACH, naming the first that differs.
    NOT_RUN for buffers of a model that has none.
    """
    ours, theirs = hashes_of(run), hashes_of(other)
    # a rank without rows would agree with a replay without them
    silent = sorted({*range(world_size)} - {rank for _, rank in ours})
    if silent:
        return _breach(f"rank {silent[0]} recorded nothing")
    if not ours or ours.keys() != theirs.keys():
        return _breach("the recorded steps differ")
    rows = [*ours.values(), *theirs.values()]
    if what == "buffers" and not any(row[what] for row in rows):
        return not_run("the model has no buffers")
    if found := first_difference(run, other, [what]):
        where = f"step {found.step}, tensor {found.tensor}, rank {found.ranks[0]}"
        return _breach(f"first at {where}")
    return SAME


def losses_rung(run: Sequence[float], other: Sequence[float]) -> Rung:
    """Return a rung: EQUAL if the mean losses of all steps are equal numbers."""
    if len(run) != len(other) or not run:
        return _breach(f"{len(run)} steps against {len(other)}")
    for step, (ours, theirs) in enumerate(zip(run, other, strict=True)):
        if ours != theirs:
            detail = f"first at step {step}: {ours!r} against {theirs!r}"
            return _breach(detail, abs(ours - theirs))
    return Rung(True, None, 0.0, CheckVerdict.EQUAL, "")


def unwatched_rung(run: Rows) -> Rung:
    """Return a rung: EQUAL if minitrain's communication hook changed no bit of DDP's
    gradients at step 0, else BREACH. NOT_RUN if none were recorded without the hook.
    """
    bare = [{**row, "kind": "tensors"} for row in of_kind(run, "unwatched")]
    if not bare:
        return not_run("without its hook this is a different strategy")
    hooked = [row for row in of_kind(run, "tensors") if row["step"] == 0]
    return hashes_rung(hooked, bare, "gradients", len(hooked))


def precision_rung(run: Rows, replay: Rows) -> Rung:
    """Return a rung: EQUAL if all recorded loss scaler states equal the replay's."""
    wanted = {row["step"]: row.get("precision") for row in of_kind(replay, "tensors")}
    rows = of_kind(run, "tensors")
    for row in rows:
        state = row.get("precision")
        if not state or state != wanted.get(row["step"]):
            return _breach(f"step {row['step']}: rank {row['rank']} has {state}")
    if not rows:
        return _breach("nothing was recorded")
    return SAME


def data_rung(run: Rows, other: Rows) -> Rung:
    """Return a rung: EQUAL if both runs read the same samples in each global batch, and
    on each rank if their world sizes are equal; else BREACH.
    """
    ours, theirs = (of_kind(rows, "batch") for rows in (run, other))
    for step, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        by_rank, others = a.get("ranks", ()), b.get("ranks", ())
        # between different world sizes only the global batch can be compared
        swapped = len(by_rank) == len(others) and by_rank != others
        if a["sha256"] != b["sha256"] or swapped:
            return _breach(f"first at step {step}")
    if len(ours) != len(theirs) or not ours:
        return _breach(f"{len(ours)} steps against {len(theirs)}")
    return SAME


def trained_rung(run: Rows) -> Rung:
    """Return a rung: PASSED if a parameter changed between the first and last recorded
    step, else BREACH; NOT_RUN if all recorded steps after the first overflowed.
    """
    tensors = of_kind(run, "tensors")
    if not tensors:
        return without_bits(CheckVerdict.BREACH, "nothing was recorded")
    first = min(tensors, key=lambda row: row["step"])
    last = max(tensors, key=lambda row: row["step"])["parameters"]
    trained = first["gradients"]
    moved = [name for name in trained if first["parameters"][name] != last[name]]
    if not moved and _all_overflowed(tensors):
        return not_run("every recorded step after the first overflowed")
    detail = f"{len(moved)} of {len(trained)} tensors changed"
    if moved and len(moved) < len(trained):
        still = [name for name in trained if name not in moved]
        detail += f", not {', '.join(still[:3])}{', ...' if still[3:] else ''}"
    return without_bits(CheckVerdict.PASSED if moved else CheckVerdict.BREACH, detail)


def _all_overflowed(tensors: Rows) -> bool:
    # the scaler of fp16 lowers its scale at an overflow, and then skips the step
    states: dict[int, Any] = {row["step"]: row.get("precision") for row in tensors}
    if len(states) < 2 or not all(states.values()):
        return False
    scales = [states[step]["scale"] for step in sorted(states)]
    return all(later < scale for scale, later in pairwise(scales))


def reduced_once_rung(run: Rows) -> Rung:
    """Return a rung: PASSED if each layout has each parameter in exactly one bucket."""
    layouts = of_kind(run, "buckets")
    trained = {n for row in of_kind(run, "tensors") for n in row["gradients"]}
    if not layouts:
        return without_bits(CheckVerdict.BREACH, "nothing was reduced")
    for row in layouts:
        names = [name for bucket in row["buckets"] for name in bucket["parameters"]]
        often = [name for name, count in Counter(names).items() if count > 1]
        never = sorted(trained - {*names})
        if often or never:
            what = "reduced more than once" if often else "never reduced"
            detail = f"step {row['step']}: {(often or never)[0]} is {what}"
            return without_bits(CheckVerdict.BREACH, detail)
    return without_bits(CheckVerdict.PASSED, f"{len(trained)} tensors")


def first_nan(tensors: Tensors) -> str | None:
    """Return the name of the first tensor that holds a NaN, or None."""
    return next((name for name, t in tensors.items() if bool(t.isnan().any())), None)
