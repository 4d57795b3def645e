"""The ladder of evidence: from equal bits to tolerances whose origin is stated.

A rung compares two things and gives a verdict. Bits are expected where the order of
every sum is the same; a tolerance only where it cannot be, against one process that
computes the whole batch at once. docs/reference.md says where the tolerances come from.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from minitrain.ulp import distance, gaps

Verdict = Literal["equal", "within tolerance", "breach", "undecided", "not run"]
Tensors = Mapping[str, Tensor]
Rows = Sequence[Mapping[str, Any]]

GRADIENT_TOLERANCE = 1e-5
# where all is float64, rounding is 2^29 times finer, and so are the limits
GRADIENT_TOLERANCE_FLOAT64 = 1e-13
STATE_TOLERANCE_FLOAT64 = 1e-11
SGD_TOLERANCE = 1e-6
ADAMW_RATE_OF_ATOL = 3e-4
ADAMW_SHARE_WITHIN_ATOL = 0.999
MUCH_FARTHER = 10


class Tuning(Protocol):
    """What a tolerance depends on: ``train`` of params.yaml has it."""

    @property
    def optimizer(self) -> str: ...

    @property
    def learning_rate(self) -> float: ...


@dataclass(frozen=True)
class Rung:
    """One comparison. ``detail`` says what differs, or why it was not run."""

    bytes_equal: bool | None
    max_ulp: int | None
    max_abs_diff: float | None
    verdict: Verdict
    detail: str

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def not_run(why: str) -> Rung:
    """A rung that would prove nothing here: the reason instead of a verdict."""
    return Rung(None, None, None, "not run", why)


def ranks_rung(states: Sequence[Tensors]) -> Rung:
    """Every rank's final state against rank 0's: equal bits."""
    if len(states) < 2:
        return not_run("one rank has nobody to agree with")
    for rank, state in enumerate(states[1:], start=1):
        rung = bits_rung(states[0], state)
        if rung.verdict == "breach":
            return replace(rung, detail=f"rank {rank}: {rung.detail}")
    return Rung(True, 0, 0.0, "equal", "")


def bits_rung(a: Tensors, b: Tensors) -> Rung:
    """Two sets of tensors: equal bits, and no NaN, which is equal to nothing."""
    apart = distance(a, b)
    if apart.bytes_equal and (nan := _first_nan(a)):
        return Rung(True, None, None, "breach", f"tensor {nan} holds NaN")
    verdict: Verdict = "equal" if apart.bytes_equal else "breach"
    detail = "" if apart.bytes_equal else f"tensor {apart.tensor} differs"
    return Rung(apart.bytes_equal, apart.max_ulp, apart.max_abs_diff, verdict, detail)


def hashes_rung(
    run: Rows,
    other: Rows,
    what: Literal["gradients", "parameters", "buffers"],
    world_size: int | None = None,
) -> Rung:
    """Recorded hashes of every rank of ``run`` against the same of ``other``: equal.

    Given ``world_size``, each of its ranks must have recorded some.

    Names the first step and tensor that differ. Hashes know equal or not, no distance.
    """
    ours, theirs = (
        {(row["step"], row["rank"]): row[what] for row in _rows(rows, "tensors")}
        for rows in (run, other)
    )
    present = {rank for _, rank in ours}
    silent = [r for r in range(world_size or 0) if r not in present]
    if silent:
        return Rung(False, None, None, "breach", f"rank {silent[0]} recorded nothing")
    if not ours or ours.keys() != theirs.keys():
        return Rung(False, None, None, "breach", "other steps were recorded")
    if what == "buffers" and not any([*ours.values(), *theirs.values()]):
        return not_run("the model has no buffers")
    for step, rank in sorted(ours):
        hashes, wanted = ours[step, rank], theirs[step, rank]
        for name in [*hashes, *(wanted.keys() - hashes.keys())]:
            if hashes.get(name) != wanted.get(name):
                where = f"step {step}, tensor {name}, rank {rank}"
                return Rung(False, None, None, "breach", f"first at {where}")
    return Rung(True, None, None, "equal", "")


def own_to_each_rank(run: Rows) -> str | None:
    """Why one process with the whole batch computes something else by design, if so."""
    forward = _rows(run, "forward")
    if any(row["draws_random_numbers"] for row in forward):
        return "the forward pass draws random numbers, each rank its own"
    if any(row["changes_buffers"] for row in forward):
        return "the forward pass changes buffers, each rank by its own samples"
    return None


def data_rung(run: Rows, other: Rows) -> Rung:
    """The hash of every step's global batch against ``other``'s: the same samples."""
    ours, theirs = ([r["sha256"] for r in _rows(x, "batch")] for x in (run, other))
    for step, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            return Rung(False, None, None, "breach", f"first at step {step}")
    if len(ours) != len(theirs) or not ours:
        detail = f"{len(ours)} steps against {len(theirs)}"
        return Rung(False, None, None, "breach", detail)
    return Rung(True, None, None, "equal", "")


def trained_rung(run: Rows) -> Rung:
    """Trained parameters changed between the first and the last recorded step.

    Guards every other rung: things that never changed are equal for no reason. A
    buffer that counts steps does not count here.
    """
    tensors = _rows(run, "tensors")
    if not tensors:
        return Rung(None, None, None, "breach", "nothing was recorded")
    first = min(tensors, key=lambda row: row["step"])
    last = max(tensors, key=lambda row: row["step"])["parameters"]
    trained = first["gradients"]
    moved = [name for name in trained if first["parameters"][name] != last[name]]
    detail = f"{len(moved)} of {len(trained)} tensors changed"
    return Rung(None, None, None, "equal" if moved else "breach", detail)


def reduced_once_rung(run: Rows) -> Rung:
    """Every trained parameter is in exactly one bucket of a step: reduced once."""
    layouts = _rows(run, "buckets")
    trained = {n for row in _rows(run, "tensors") for n in row["gradients"]}
    if not layouts:
        return Rung(None, None, None, "breach", "nothing was reduced")
    for row in layouts:
        names = [name for bucket in row["buckets"] for name in bucket["parameters"]]
        often = [name for name, count in Counter(names).items() if count > 1]
        never = sorted(trained - {*names})
        if often or never:
            what = "reduced more than once" if often else "never reduced"
            detail = f"step {row['step']}: {(often or never)[0]} is {what}"
            return Rung(None, None, None, "breach", detail)
    return Rung(None, None, None, "equal", f"{len(trained)} tensors")


def gradients_rung(run: Tensors, one_process: Tensors) -> Rung:
    """Step-0 gradients against one process with the whole batch.

    Equal weights, other summation shapes: within 1e-5 of the model's largest gradient,
    in float64 1e-13 of it.
    """
    sizes = [float(g.abs().max()) for g in one_process.values() if g.numel()]
    largest = max(sizes, default=0.0)
    double = _all_float64(one_process)
    share = GRADIENT_TOLERANCE_FLOAT64 if double else GRADIENT_TOLERANCE
    return _tolerance_rung(run, one_process, share * largest)


def early_state_rung(
    run: Tensors, one_process: Tensors, train: Tuning, atol: float
) -> Rung:
    """State after the third step against one process with the whole batch.

    The limits of :func:`state_rung`; so early, rounding has had no time to grow.
    """
    if not run:
        return not_run("fewer than three steps")
    return state_rung(run, one_process, train, atol)


def final_state_rung(
    run: Tensors,
    one_process: Tensors,
    train: Tuning,
    atol: float,
    nudged: Callable[[], Tensors],
) -> Rung:
    """Final state against one process with the whole batch.

    Training that is unstable at its learning rate amplifies rounding without bound. So
    a state beyond tolerance is compared with how far ``nudged()`` went: one process
    that started one unit in the last place away. Where that is beyond tolerance too,
    and not much nearer, rounding alone explains the gap: it is undecided.
    """
    rung = state_rung(run, one_process, train, atol)
    if rung.verdict != "breach" or rung.max_abs_diff is None:
        return rung
    drift = state_rung(nudged(), one_process, train, atol)
    if drift.verdict != "breach" or drift.max_abs_diff is None:
        return rung
    if rung.max_abs_diff > MUCH_FARTHER * drift.max_abs_diff:
        return rung
    unstable = f"a start one ULP away ends {drift.max_abs_diff:.3g} away"
    detail = f"{rung.detail}, but {unstable}: this training is unstable"
    return replace(rung, verdict="undecided", detail=detail)


def state_rung(run: Tensors, one_process: Tensors, train: Tuning, atol: float) -> Rung:
    """A state against one process with the whole batch.

    SGD: every element within 1e-6. AdamW: 99.9 % of the elements within ``atol`` times
    learning rate / 3e-4 and every element within the learning rate, because AdamW
    turns rounding noise in a vanishing gradient into steps of the rate's size. Where
    all is float64: every element within 1e-11.
    """
    if _all_float64(one_process):
        return _tolerance_rung(run, one_process, STATE_TOLERANCE_FLOAT64)
    if train.optimizer == "sgd":
        return _tolerance_rung(run, one_process, SGD_TOLERANCE)
    rate = train.learning_rate
    common = atol * rate / ADAMW_RATE_OF_ATOL
    return _tolerance_rung(run, one_process, max(rate, common), common)


def _tolerance_rung(
    run: Tensors, other: Tensors, every: float, most: float | None = None
) -> Rung:
    apart = distance(run, other)
    if apart.max_abs_diff is None or _first_nan(run):
        tensor = _first_nan(run) or apart.tensor
        detail = f"tensor {tensor} cannot be compared (NaN, shape or dtype)"
        return Rung(False, None, None, "breach", detail)
    apart_by = {n: gaps(run[n], other[n]) for n in run if run[n].numel()}
    every_gap = torch.cat(list(apart_by.values()))
    share = float((every_gap <= most).double().mean()) if most is not None else 1.0
    within = apart.max_abs_diff <= every and share >= ADAMW_SHARE_WITHIN_ATOL
    detail = f"allowed: {every:.3g}"
    if most is not None:
        detail += f", for 99.9 % of the elements {most:.3g} (here {100 * share:.5g} %)"
    if not within:
        worst = max(apart_by, key=lambda n: float(apart_by[n].max()))
        detail += f"; tensor {worst} is {apart.max_abs_diff:.3g} off"
    verdict: Verdict = "within tolerance" if within else "breach"
    if apart.bytes_equal:
        verdict = "equal"
    return Rung(apart.bytes_equal, apart.max_ulp, apart.max_abs_diff, verdict, detail)


def breaches(rungs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One line for each rung (by name) that the evidence refuses."""
    return [
        f"{name}: {rung['detail']}"
        for name, rung in rungs.items()
        if rung["verdict"] == "breach"
    ]


def _rows(rows: Iterable[Mapping[str, Any]], kind: str) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["kind"] == kind]


def _all_float64(tensors: Tensors) -> bool:
    floating = [t.dtype for t in tensors.values() if t.is_floating_point()]
    return bool(floating) and set(floating) == {torch.float64}


def _first_nan(tensors: Tensors) -> str | None:
    return next((name for name, t in tensors.items() if bool(t.isnan().any())), None)
