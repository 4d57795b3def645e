"""The rules, each with a fault that it finds and a clean twin of it that is silent."""

import math
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from recorded_rows import (
    SHAPES,
    Row,
    Tensors,
    headers,
    mean,
    on_rank,
    own_of,
    random_tensors,
    rows_of,
)

from minitrain.recording.alarm import Alarm, unlike
from minitrain.recording.fingerprint import fingerprint
from minitrain.recording.judge import Judge
from minitrain.recording.rules import alarms_at_end, alarms_of
from minitrain.recording.rules_of_state import apart

OWN = own_of(1, 2)
BEFORE = rows_of(0, own_of(0, 2))
USUAL = rows_of(1, OWN)[0]
FIRST = next(iter(SHAPES))
DDP = "DistributedDataParallel"


def scaled(tensors: Tensors, factor: float) -> Tensors:
    return {name: factor * tensor for name, tensor in tensors.items()}


def only(found: Iterable[Alarm]) -> Alarm:
    found = [*found]
    assert len(found) == 1, [one.line for one in found]
    return found[0]


def at_step_1(
    gradients: list[Tensors] | None = None,
    /,
    last: Any = BEFORE,
    own: list[Tensors] = OWN,
    **changes: Any,
) -> list[Alarm]:
    return alarms_of(rows_of(1, own, gradients, **changes), last)


step = partial(partial, at_step_1)


def alike(gradients: Tensors, ranks: int = 2, **changes: Any) -> Any:
    """All ranks got the same."""
    return step([gradients] * ranks, **changes)


def before(**changes: Any) -> list[Row]:
    return rows_of(0, own_of(0, 2), **changes)


def samples_of(rank: int, step: int = 1) -> list[list[str]]:
    inputs: list[list[str]] = rows_of(step, own_of(step, 2))[rank]["inputs"]
    return inputs


def groups(decay: float) -> list[dict[str, Any]]:
    settings = {"weight_decay": decay, "betas": [0.9, 0.999]}
    return [{"parameters": [*SHAPES], "settings": settings}]


THREE = own_of(1, 3)
PAIR = mean(THREE[:2])
PART = {n: (THREE[0][n] + THREE[2][n]) / 3 for n in SHAPES}
HALF = scaled(mean(OWN), 0.5)
NAN = scaled(mean(OWN), math.nan)
ROUNDED = {name: tensor * (1 + 2e-7) for name, tensor in mean(OWN).items()}
NEAR = [OWN[0], {n: t + 1e-6 * random_tensors(5)[n] for n, t in OWN[0].items()}]
OTHER = USUAL["parameters"] | {FIRST: fingerprint(random_tensors(7)[FIRST])}
PARTED = {"parameters": on_rank(1, OTHER, USUAL["parameters"])}
START = USUAL["before"]
EARLIER = PARTED | {"before": on_rank(1, START | {FIRST: "0"}, START)}
INFINITE = USUAL["parameters"] | {
    "layer.bias": fingerprint(torch.tensor([1.0, math.inf]))
}
UNFROZEN = [row | {"gradients": {}, "own": {}} for row in BEFORE]
MEANS = {"running_mean": {"hash": "0"}}, {"running_mean": {"hash": "1"}}
BUFFERS = {"buffers": on_rank(1, *MEANS)}
OF_OTHERS: list[dict[str, Any]] = [{"parameters": [], "settings": {}}]
UNMOVED = before(parameters={"x": {"hash": "0"}})
# how lines begin
G = "gradients, tensor embedding, rank 1: ... "
P = "parameters, tensor embedding, rank 1: ... "
M = "note: not the mean, tensor embedding: ... "
B = "buffers, tensor running_mean, rank 1: ... "
# by a pattern of its line, without the step: a step with a fault
FAULTS: dict[str, Any] = {
    # all that train at this step were frozen at the step before
    f"{G}only after DDP was built": step(OWN, last=UNFROZEN),
    f"{G}DDP waits for a parameter that was replaced, or": step(OWN),
    f"{G}each keeps its own": step([PAIR, THREE[1], PAIR], own=THREE, last=None),
    # the same data on all ranks, once without a reduction
    f"{G}each keeps its own ... without a wrapper": step(
        NEAR, own=NEAR, last=None, wrapper="", synced=None
    ),
    f"note: {G}apart by rounding; probable": step(NEAR, own=NEAR, last=None),
    "gradients, tensor embedding, rank 2: ... lacks the gradient of rank 1": step(
        [mean(THREE)] * 2 + [mean(THREE) | {FIRST: PART[FIRST]}], own=THREE, last=None
    ),
    f"note: {G}apart by rounding": step([mean(OWN), ROUNDED]),
    "note: not finite, tensor embedding: ... in gradients (3 such": alike(NAN),
    "note: not finite, tensor layer.bias: ... in parameters (1 such": step(
        parameters=INFINITE
    ),
    "mean, tensor layer.weight, rank 1: ... lacks the gradient of rank 1": alike(
        mean(OWN) | {"layer.weight": OWN[0]["layer.weight"] / 2}
    ),
    # what a hook may do: clip each tensor, weigh the ranks, add noise, sum one tensor
    f"{M}clipped by value, tensor or rank": alike(
        {n: t / t.norm() for n, t in mean(OWN).items()}
    ),
    f"{M}of itself off": alike({n: 0.3 * OWN[0][n] + 0.7 * OWN[1][n] for n in SHAPES}),
    "note: not the mean, tensor layer.bias: ... (1 of 3 tensors)": alike(
        mean(OWN) | {"layer.bias": 2 * mean(OWN)["layer.bias"]}
    ),
    f"{P}since step 0 was done ... between": step(**EARLIER),
    "learning rates, rank 1: ... 0.05, but elsewhere 0.1": step(
        lr=on_rank(1, [0.05], [0.1]), **PARTED
    ),
    "optimizer settings, tensor embedding, rank 1: ... = 0.3, but elsewhere 0.0": step(
        groups=on_rank(1, groups(0.3), groups(0.0))
    ),
    "note: no gradient, tensor spare, ranks 0, 1: ... no gradient, again": step(
        last=before(without_gradient=["spare"]), without_gradient=["spare"]
    ),
    "note: not held, tensor x: ... in no optimizer": step(not_held=["x"]),
    # its copies in float32 are in the optimizer, and were copied back
    "note: not held, tensor x: ... copies of them are trained": step(
        not_held=["x"], groups=OF_OTHERS, before={"x": "1"}, last=UNMOVED
    ),
    # or a warmup from a learning rate of 0 has moved nothing
    "note: not held, tensor x: ... copies of them are trained, as": step(
        not_held=["x"],
        groups=OF_OTHERS,
        before={"x": "0"},
        last=before(parameters={"x": {"hash": "0"}}, lr=[0.0]),
    ),
    "not held, tensor x: ... holds no parameter of the model": step(
        not_held=["x"], groups=OF_OTHERS, before={"x": "0"}, last=UNMOVED
    ),
    "note: number of samples: ... 4, 2 samples on ranks in order": step(
        inputs=on_rank(1, [["a", "b"]], samples_of(0))
    ),
    f"{B}not broadcast before the": step(broadcast_buffers=True, **BUFFERS),
    "note: random numbers: ... ranks 0, 1 draw the same": step(draws=True, random="0"),
}


@pytest.mark.parametrize("wanted", FAULTS)
def test_a_fault_is_found_with_its_place_and_cause(wanted: str) -> None:
    is_note = wanted.startswith("note")
    found = only([one for one in FAULTS[wanted]() if one.severe or is_note])
    line = found.line.removeprefix("minitrain: ").replace(f"step {found.step}: ", "", 1)
    assert found.severe is not is_note
    pattern = map(re.escape, wanted.replace("DDP", DDP).split(" ... "))
    assert re.match(".*".join(pattern), line), line


# twins of faults, and what may be once
SILENT: dict[str, Callable[[], list[Alarm]]] = {
    "all clipped alike": alike(scaled(mean(OWN), 0.3)),
    "loss scale": alike(scaled(mean(OWN), 1 / 65536)),
    "halved once": alike(HALF),
    "no gradient once": step(without_gradient=["spare"]),
    "one sample once": step(inputs=[["a"]]),
    # told at the step at which it happened alone
    "passes before": step(
        last=[row | {"forwards": rank} for rank, row in enumerate(BEFORE)],
        forwards=lambda rank: 2 + rank,
    ),
    "second wrapper": step(last=before(wrapper_id=2), wrapper_id=2),
    "two passes": step(syncs=[True, True], reductions=1),
    "drawn": step(draws=True),
    "not drawn": step(random="0"),
    "settings of one": step(groups=on_rank(1, groups(0.3), [])),
    "table": step(
        last=before(inputs=[["0", "1"]], beside=on_rank(1, ["cc"], ["dd"])),
        inputs=[["0", "1"]],
        beside=on_rank(1, ["aa"], ["bb"]),
    ),
}


@pytest.mark.parametrize("name", SILENT)
def test_what_is_right_is_silent(name: str) -> None:
    assert SILENT[name]() == []


def test_who_is_unlike_the_others() -> None:
    assert unlike(["a", "a", "b", "a"]) == [2]
    # as many have one as have another: those that are not as rank 0
    assert unlike(["a", "b"]) == [1]
    assert unlike(["a", "b", "a", "b"]) == [1, 3]
    assert unlike([None, None]) == []


def test_without_own_gradients_the_cause_is_unknown() -> None:
    rows = [row | {"own": {}} for row in rows_of(1, OWN, OWN)]
    assert only(alarms_of(rows, BEFORE)).line.endswith("probable cause: unknown")
    assert alarms_of([row | {"own": {}} for row in rows_of(1, OWN)], BEFORE) == []


@pytest.mark.parametrize("world_size", [8, 12])
def test_a_rank_is_missing_among_many(world_size: int) -> None:
    """More than one tensor has numbers for."""
    own = own_of(1, world_size)
    part = {n: (world_size * mean(own)[n] - own[3][n]) / world_size for n in SHAPES}
    found = only(alarms_of(rows_of(1, own, [part] * world_size), None))
    assert (found.rule, found.ranks, found.severe) == ("mean", [3], True)
    assert "lacks the gradient of rank 3" in found.line
    noisy = {n: t + random_tensors(5)[n] for n, t in mean(own).items()}
    found = only(alarms_of(rows_of(1, own, [noisy] * world_size), None))
    assert (found.rule, found.severe) == ("not the mean", False)


def test_a_rank_is_missing_in_one_tensor_of_eight_ranks() -> None:
    """A sketch has just as many numbers."""
    own = own_of(2, 8)
    part = mean(own) | {FIRST: (8 * mean(own)[FIRST] - own[3][FIRST]) / 8}
    found = only(alarms_of(rows_of(2, own, [part] * 8), None))
    assert (found.rule, found.ranks, found.tensor) == ("mean", [3], FIRST)


def test_own_gradients_that_cancel_leave_nothing_but_rounding() -> None:
    name, noise = "layer.bias", random_tensors(5)
    own = [OWN[0], OWN[1] | {name: -OWN[0][name]}]
    got = mean(own) | {name: 1e-7 * noise[name]}
    assert alarms_of(rows_of(1, own, [got] * 2), None) == []


@pytest.mark.parametrize("broken", [OWN[1], NAN])
def test_an_optimizer_that_averages_is_told_beside_what_is_not_finite(
    broken: Tensors,
) -> None:
    own = [OWN[0], broken]
    start = {name: one["hash"] for name, one in BEFORE[0]["parameters"].items()}
    after = {name: fingerprint(tensor) for name, tensor in mean(own).items()}
    rows = rows_of(1, own, own, parameters=after, before=start)
    rules = ["averaged in step"] + ["not finite"] * (broken is NAN)
    assert sorted(one.rule for one in alarms_of(rows, BEFORE)) == rules


def test_a_scalar_cannot_tell_ranks_apart() -> None:
    # one element: any sum can be written without one of them
    rows = rows_of(1, OWN)
    for row, one in zip(rows, OWN, strict=True):
        scalar = one["layer.bias"][:1]
        row["own"]["scalar"] = [float(scalar), *[0.0] * 7]
        row["gradients"]["scalar"] = fingerprint(3 * scalar) | {
            "hash": "0",
            "sketch": [3.0 * float(OWN[0]["layer.bias"][0]), *[0.0] * 7],
        }
    assert alarms_of(rows, BEFORE) == []


def test_parameters_are_told_when_they_part() -> None:
    rows = [rows_of(number, own_of(number, 2), own_of(number, 2)) for number in (0, 1)]
    after = rows_of(2, own_of(2, 2))
    after[1]["parameters"] |= {FIRST: fingerprint(random_tensors(7)[FIRST])}
    # and unlike gradients are the root of unlike parameters
    assert rows[1][0]["parameters"] != rows[1][1]["parameters"]
    assert [one.rule for one in alarms_of(rows[1], rows[0])] == ["gradients"]
    assert alarms_of(after, rows[1]) == []
    assert only(alarms_of(after, rows_of(1, OWN))).rule == "parameters"


def stuck(number: int, **changes: Any) -> list[Row]:
    rows = rows_of(number, own_of(number, 2), **changes)
    for row in rows:
        row["before"][FIRST] = row["parameters"][FIRST]["hash"]
    return rows


def test_a_tensor_that_does_not_move() -> None:
    found = only(alarms_of(stuck(2), stuck(1)))
    assert (found.rule, found.tensor, found.severe) == ("unmoved", FIRST, False)
    # once may be a coincidence
    assert alarms_of(stuck(1), BEFORE) == []
    # a warm-up from nothing, and a gradient of nothing
    for rate in (0.0, 1e-8):
        assert alarms_of(stuck(2, lr=[rate]), stuck(1, lr=[rate])) == []
    both = [stuck(1), stuck(2)]
    for row in both[0] + both[1]:
        row["gradients"][FIRST] = {"hash": "0", "norm": 0.0, "sketch": [0.0] * 8}
        row["own"][FIRST] = [0.0] * 8
    assert alarms_of(both[1], both[0]) == []


def test_one_sample_a_step_may_be_the_same_once() -> None:
    last = before(inputs=[["x"]])
    found = only([o for o in at_step_1(last=last, inputs=[["a"]]) if o.severe])
    assert (found.rule, found.ranks) == ("inputs", [1])
    # a benchmark on one sample
    assert not [one for one in at_step_1(last=last, inputs=[["x"]]) if one.severe]


def test_unlike_steps() -> None:
    rows = rows_of(1, OWN)
    rows[1] |= {"step": 2}
    judge = Judge()
    found = only(judge.see(rows))
    assert (found.rule, found.ranks) == ("steps", [1])
    # nothing more is compared
    assert judge.see(rows_of(2, OWN, OWN)) == []
    assert "at step 2, but elsewhere step 1" in found.line
    rows[1] = {"kind": "end", "steps": {"0": 1}, "forwards": 1}
    assert "at the end, but elsewhere" in only(alarms_of(rows, BEFORE)).line


# start and end


def test_unlike_models_at_the_start() -> None:
    usual = headers(2)[0]["parameters"]
    larger = usual | {"head": {"shape": [1], "dtype": "float32", "trained": True}}
    found = only(Judge().see(headers(2, parameters=on_rank(1, larger, usual))))
    assert (found.rule, found.tensor, found.ranks) == ("model", "head", [1])
    assert "elsewhere not there; probable cause: ranks build different" in found.line


def end_of(steps: dict[str, int], passes: int, **more: Any) -> Row:
    return {"kind": "end", "steps": steps, "forwards": passes, **more}


def test_unlike_numbers_of_steps_at_the_end() -> None:
    ends = [end_of({"0": n}, n) for n in (5, 4)]
    found = only(alarms_at_end(ends, [], []))
    assert (found.rule, found.ranks, found.step) == ("steps", [1], 5)
    assert "4 steps, but elsewhere 5" in found.line
    assert [*alarms_at_end(ends[:1] * 2, [], [])] == []


def apart_by(share: float) -> list[Row]:
    """Rows whose gradients are apart by rounding, and parameters by a share."""
    rounded = mean(OWN)
    other = {name: (1 + 1e-7) * tensor for name, tensor in rounded.items()}
    rows = rows_of(1, OWN, [rounded, other])
    after = random_tensors(1001)
    moved = random_tensors(9)
    rows[0]["parameters"] = {n: fingerprint(t) for n, t in after.items()}
    rows[1]["parameters"] = {
        n: fingerprint(t + share * moved[n]) for n, t in after.items()
    }
    return rows


def test_rounding_hides_no_parameters_that_are_far_apart() -> None:
    near, far = apart_by(1e-6), apart_by(0.1)
    note = only(alarms_of(near, None))
    assert (note.rule, note.severe) == ("gradients", False)
    found = only([one for one in alarms_of(far, near) if one.severe])
    assert (found.rule, found.ranks) == ("parameters", [1])
    assert "of the model apart" in found.line
    # it was told at the step before
    assert not any(one.severe for one in alarms_of(far, far))


def test_parameters_that_are_not_finite_on_one_rank_are_far_apart() -> None:
    rows: list[Any] = [
        {"parameters": {"a": {"hash": str(x), "norm": 1.0, "sketch": [x] * 8}}}
        for x in (1.0, math.nan)
    ]
    assert apart(rows) == math.inf
    assert apart(rows[:1] * 2) == 0


def test_parameters_that_part_after_the_last_recorded_step() -> None:
    prints = [
        {name: fingerprint(tensor) for name, tensor in random_tensors(seed).items()}
        for seed in (1, 2)
    ]
    ends = [end_of({"0": 5}, 5, parameters=one) for one in prints]
    found = only(alarms_at_end(ends, [rows_of(1, OWN)], []))
    assert (found.rule, found.ranks, found.step) == ("parameters", [1], 5)
    assert [*alarms_at_end([ends[0]] * 2, [rows_of(1, OWN)], [])] == []
    # they had parted before, and it was told
    assert [*alarms_at_end(ends, [apart_by(0.1)], [])] == []


# over a run


def test_a_judge_tells_a_fault_once() -> None:
    judge = Judge()
    assert judge.see(headers(2)) == []
    # an alarm is not hidden by a note of the same rule
    total, part = scaled(mean(OWN), 2), {name: OWN[1][name] / 2 for name in SHAPES}
    assert not only(judge.see(rows_of(0, OWN, [total] * 2))).severe
    found = only(judge.see(rows_of(1, OWN, [part] * 2, inputs=samples_of)))
    assert (found.rule, found.severe, found.ranks) == ("mean", True, [0])
    for number, gradients in ((2, total), (3, part)):
        inputs = partial(samples_of, step=number)
        assert judge.see(rows_of(number, OWN, [gradients] * 2, inputs=inputs)) == []


def test_an_epoch_that_ends_by_chance_as_it_began_pads_nothing() -> None:
    judge = Judge()
    # two steps an epoch, and the samples of two ranks
    for number, of in enumerate(("ab cd", "ef gh", "bd cf", "eh ga")):
        inputs = [[[*samples]] for samples in of.split()]
        rows = rows_of(number, own_of(number, 2), inputs=inputs.__getitem__)
        assert judge.see(rows) == []


def test_ranks_apart_by_rounding_have_parameters_apart() -> None:
    judge = Judge()
    rows = rows_of(0, OWN, [mean(OWN), ROUNDED])
    assert rows[0]["parameters"] != rows[1]["parameters"]
    assert [one.rule for one in judge.see(rows)] == ["gradients"]
    (found,) = judge.see(rows_of(1, OWN, OWN, inputs=samples_of))
    assert (found.rule, found.severe) == ("gradients", True)
