"""The rules, each with a fault that it finds and a clean twin of it that is silent."""

import math
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
from minitrain.recording.findings import Judge
from minitrain.recording.fingerprint import digest, fingerprint
from minitrain.recording.rules import alarms_at_end, alarms_at_start, alarms_of
from minitrain.recording.rules_of_parameters import apart

OWN = own_of(1, 2)
BEFORE = rows_of(0, own_of(0, 2))
FIRST = next(iter(SHAPES))


def scaled(tensors: Tensors, factor: float) -> Tensors:
    return {name: factor * tensor for name, tensor in tensors.items()}


def only(found: list[Alarm]) -> Alarm:
    assert len(found) == 1, [one.line for one in found]
    return found[0]


def at_step_1(
    gradients: list[Tensors] | None = None, /, last: Any = BEFORE, **changes: Any
) -> list[Alarm]:
    return alarms_of(rows_of(1, OWN, gradients, **changes), last)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_clean_steps_are_silent(world_size: int) -> None:
    before = None
    for step in range(5):
        rows = rows_of(step, own_of(step, world_size))
        assert alarms_of(rows, before) == []
        before = rows


def test_who_is_unlike_the_others() -> None:
    assert unlike(["a", "a", "b", "a"]) == [2]
    # as many have one as have another: those that are not as rank 0
    assert unlike(["a", "b"]) == [1]
    assert unlike(["a", "b", "a", "b"]) == [1, 3]
    assert unlike([None, None]) == []


# gradients


def test_each_keeps_its_own() -> None:
    found = only(at_step_1(OWN))
    assert (found.rule, found.ranks, found.tensor) == ("gradients", [1], FIRST)
    assert found.severe
    assert found.line == (
        f"minitrain: step 1: gradients, tensor {FIRST}, rank 1: each keeps its own (3 "
        "of 3 tensors); probable cause: a communication hook of "
        "DistributedDataParallel that reduces nothing"
    )


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"synced": False}, "no_sync was on"),
        ({"wrapper": ""}, "called without its wrapper, unlike before"),
        ({"group": 1}, "in a group of one rank"),
        ({"group": None}, "in a group of one rank"),
        ({"without_gradient": ["spare"]}, "waits for spare"),
    ],
)
def test_why_each_keeps_its_own(changes: dict[str, Any], cause: str) -> None:
    found = only([one for one in at_step_1(OWN, **changes) if one.severe])
    assert found.line.endswith(cause) or cause in found.line
    assert at_step_1(wrapper="", synced=False, group=1) == []


def test_a_model_that_was_never_wrapped() -> None:
    found = only(at_step_1(OWN, last=None, wrapper=""))
    assert "the model is not wrapped" in found.line


def test_some_parameters_that_were_replaced() -> None:
    got = [mean(OWN) | {"layer.bias": own["layer.bias"]} for own in OWN]
    late = only(at_step_1(got))
    assert "trainable only after DistributedDataParallel was built" in late.line
    # all that train at this step were frozen at the step before
    before = [row | {"gradients": {}, "own": {}} for row in BEFORE]
    late = only(at_step_1(OWN, last=before))
    assert "trainable only after DistributedDataParallel was built" in late.line
    found = only(at_step_1(got, replaced={"layer.bias": ""}))
    assert found.tensor == "layer.bias"
    assert "(1 of 3 tensors)" in found.line
    assert "replaced after DistributedDataParallel took the model" in found.line


def test_one_of_three_keeps_its_own() -> None:
    own = own_of(1, 3)
    pair = mean(own[:2])
    found = only(alarms_of(rows_of(1, own, [pair, own[1], pair]), None))
    assert found.ranks == [1]
    assert "each keeps its own" in found.line


def test_each_clips_by_a_norm_of_its_own() -> None:
    found = only(at_step_1([mean(OWN), scaled(mean(OWN), 0.5)]))
    assert (found.rule, found.ranks) == ("gradients", [1])
    assert "0.5 times that of rank 0" in found.line
    assert "by a number of its own" in found.line
    # all by the same is no fault
    assert at_step_1([scaled(mean(OWN), 0.3)] * 2) == []


def test_a_transfer_lost_on_one_rank() -> None:
    got = [mean(OWN), mean(OWN) | {FIRST: OWN[1][FIRST] / 2}]
    found = only(at_step_1(got))
    assert (found.rule, found.tensor) == ("gradients", FIRST)
    assert "each keeps its own (1 of 3 tensors)" in found.line
    assert found.line.endswith("from the others: a transfer that was lost")
    own = own_of(1, 3)
    part = {n: (own[0][n] + own[2][n]) / 3 for n in SHAPES}
    got = [mean(own), mean(own), mean(own) | {FIRST: part[FIRST]}]
    found = only(alarms_of(rows_of(1, own, got), None))
    assert found.ranks == [2]
    assert "rank 2 has a sum that lacks the gradient of rank 1" in found.line


def test_mixed_up_parts() -> None:
    got = mean(OWN) | {FIRST: mean(OWN)[FIRST].flip(0)}
    found = only(at_step_1([mean(OWN), got]))
    assert "no rank's own gradient, and no sum of them" in found.line
    assert "other order of the buckets" in found.line


def test_apart_by_rounding() -> None:
    got = {name: tensor * (1 + 2e-7) for name, tensor in mean(OWN).items()}
    found = only(at_step_1([mean(OWN), got]))
    assert (found.rule, found.ranks, found.severe) == ("gradients", [1], False)
    assert "apart by rounding" in found.line


def test_a_rank_without_a_gradient() -> None:
    rows = rows_of(1, OWN)
    del rows[1]["gradients"][FIRST]
    found = only(alarms_of(rows, BEFORE))
    assert (found.tensor, found.ranks) == (FIRST, [1])
    assert "there is none, but the other ranks have one" in found.line


def test_without_own_gradients_the_cause_is_unknown() -> None:
    assert only(at_step_1(OWN, own={})).line.endswith("probable cause: unknown")
    assert at_step_1(own={}) == []


def test_gradients_that_are_not_finite() -> None:
    bad = scaled(mean(OWN), float("nan"))
    found = only(at_step_1([bad, bad]))
    assert (found.rule, found.tensor, found.severe) == ("not finite", FIRST, False)
    assert "NaN or infinity in gradients (3 such tensors)" in found.line
    assert only(at_step_1([mean(OWN), bad])).ranks == [1]


def test_parameters_that_are_not_finite() -> None:
    usual = rows_of(1, OWN)[0]["parameters"]
    bad = usual | {"layer.bias": fingerprint(torch.tensor([1.0, math.inf]))}
    found = only(at_step_1(parameters=bad))
    assert (found.rule, found.tensor, found.severe) == (
        "not finite",
        "layer.bias",
        False,
    )
    assert "NaN or infinity in parameters (1 such tensors)" in found.line


# gradients against the ranks' own


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_summed_instead_of_averaged(world_size: int) -> None:
    own = own_of(1, world_size)
    total = scaled(mean(own), world_size)
    found = only(alarms_of(rows_of(1, own, [total] * world_size), None))
    assert (found.rule, found.severe) == ("mean", False)
    assert f"{world_size} times the mean of the ranks' own: their sum" in found.line
    # a loss scale is not told
    other = scaled(mean(own), 1 / 65536)
    assert alarms_of(rows_of(1, own, [other] * world_size), None) == []


def test_divided_twice_at_two_steps_in_a_row() -> None:
    before = rows_of(0, own_of(0, 2), [scaled(mean(own_of(0, 2)), 0.5)] * 2)
    half = [scaled(mean(OWN), 0.5)] * 2
    assert "by the number of ranks twice" in only(at_step_1(half, before)).line
    # clipping may be by as much once
    assert at_step_1(half) == []


def test_a_rank_is_missing_on_all() -> None:
    part = {name: OWN[1][name] / 2 for name in SHAPES}
    found = only(at_step_1([part] * 2))
    assert (found.rule, found.ranks, found.severe) == ("mean", [0], True)
    assert "lacks the gradient of rank 0" in found.line


def test_a_rank_is_missing_in_one_tensor_on_all() -> None:
    name = "layer.weight"
    got = mean(OWN) | {name: OWN[0][name] / 2}
    found = only(at_step_1([got] * 2))
    assert (found.tensor, found.ranks) == (name, [1])


@pytest.mark.parametrize("world_size", [8, 9, 12])
def test_a_rank_is_missing_among_many(world_size: int) -> None:
    """More than one tensor has numbers for."""
    own = own_of(1, world_size)
    part = {n: (world_size * mean(own)[n] - own[3][n]) / world_size for n in SHAPES}
    found = only(alarms_of(rows_of(1, own, [part] * world_size), None))
    assert (found.rule, found.ranks, found.severe) == ("mean", [3], True)
    assert "lacks the gradient of rank 3" in found.line
    noise = random_tensors(5)
    noisy = {n: t + noise[n] for n, t in mean(own).items()}
    found = only(alarms_of(rows_of(1, own, [noisy] * world_size), None))
    assert (found.rule, found.severe) == ("not the mean", False)


def test_what_a_hook_may_do_to_gradients_is_a_note() -> None:
    # each tensor clipped by itself, weights of the ranks, noise
    each = {n: t / t.norm() for n, t in mean(OWN).items()}
    weighted = {n: 0.3 * OWN[0][n] + 0.7 * OWN[1][n] for n in SHAPES}
    noise = random_tensors(5)
    noisy = {n: t + noise[n] for n, t in mean(OWN).items()}
    for got in (each, weighted, noisy):
        found = only(at_step_1([got] * 2))
        assert (found.rule, found.severe) == ("not the mean", False)


def test_a_tensor_that_is_summed_where_others_are_averaged() -> None:
    got = mean(OWN) | {"layer.bias": 2 * mean(OWN)["layer.bias"]}
    found = only(at_step_1([got] * 2))
    assert (found.rule, found.tensor) == ("not the mean", "layer.bias")
    assert "(1 of 3 tensors)" in found.line


def test_own_gradients_that_cancel_leave_nothing_but_rounding() -> None:
    name, noise = "layer.bias", random_tensors(5)
    own = [OWN[0], OWN[1] | {name: -OWN[0][name]}]
    got = mean(own) | {name: 1e-7 * noise[name]}
    assert alarms_of(rows_of(1, own, [got] * 2), None) == []


def test_a_scalar_cannot_tell_ranks_apart() -> None:
    # one element: any sum can be written without one of them
    own = OWN
    rows = rows_of(1, own)
    for row, one in zip(rows, own, strict=True):
        scalar = one["layer.bias"][:1]
        row["own"]["scalar"] = [float(scalar), *[0.0] * 7]
        row["gradients"]["scalar"] = fingerprint(3 * scalar) | {
            "hash": "0",
            "sketch": [3.0 * float(own[0]["layer.bias"][0]), *[0.0] * 7],
        }
    assert alarms_of(rows, BEFORE) == []


# parameters


def other_parameters(rank: int) -> dict[str, Any]:
    rows = rows_of(1, OWN)
    there = rows[rank]["parameters"]
    return there | {FIRST: fingerprint(random_tensors(7)[FIRST])}


def test_parameters_unlike_after_the_step() -> None:
    usual = rows_of(1, OWN)[0]["parameters"]
    changes = {"parameters": on_rank(1, other_parameters(1), usual)}
    found = only(at_step_1(**changes))
    assert (found.rule, found.ranks, found.tensor) == ("parameters", [1], FIRST)
    assert "restored on some ranks only?" in found.line
    before = [*BEFORE[:1], BEFORE[1] | {"moments": {FIRST: "other"}}]
    assert (
        "the optimizer's state of rank 1 is another one"
        in only(at_step_1(last=before, **changes)).line
    )
    rows = rows_of(0, OWN, **changes)
    assert "the optimizer is another one" in only(alarms_of(rows, None)).line


def test_parameters_unlike_before_the_step() -> None:
    rows = rows_of(1, OWN)
    usual, start = rows[0]["parameters"], rows[0]["before"]
    changes = {
        "parameters": on_rank(1, other_parameters(1), usual),
        "before": on_rank(1, start | {FIRST: "0"}, start),
    }
    found = only(at_step_1(**changes))
    assert "since step 0 was done" in found.line
    assert "not by this optimizer" in found.line
    found = only(alarms_of(rows_of(5, OWN, **changes), BEFORE))
    assert "since a step after 0" in found.line
    assert "every=1" in found.line
    found = only(alarms_of(rows_of(0, OWN, **changes), None))
    assert "rank 0's weights are not broadcast" in found.line


def test_parameters_are_told_when_they_part() -> None:
    rows = [rows_of(step, own_of(step, 2), own_of(step, 2)) for step in (0, 1)]
    after = rows_of(2, own_of(2, 2))
    after[1]["parameters"] |= {FIRST: fingerprint(random_tensors(7)[FIRST])}
    assert [one.rule for one in alarms_of(rows[1], rows[0])] == ["gradients"]
    assert alarms_of(after, rows[1]) == []
    assert only(alarms_of(after, rows_of(1, OWN))).rule == "parameters"


def test_unlike_gradients_are_the_root_of_unlike_parameters() -> None:
    rows = rows_of(1, OWN, OWN)
    assert rows[0]["parameters"] != rows[1]["parameters"]
    assert [one.rule for one in alarms_of(rows, BEFORE)] == ["gradients"]


def test_learning_rates_unlike_on_ranks() -> None:
    usual = rows_of(1, OWN)[0]["parameters"]
    changes = {"parameters": on_rank(1, other_parameters(1), usual)}
    found = only(at_step_1(lr=on_rank(1, [0.05], [0.1]), **changes))
    assert (found.rule, found.ranks) == ("learning rates", [1])
    assert "0.05, but elsewhere 0.1" in found.line


# what moves


def test_a_tensor_that_does_not_move() -> None:
    def stuck(step: int) -> list[dict[str, Any]]:
        rows = rows_of(step, own_of(step, 2))
        for row in rows:
            row["before"][FIRST] = row["parameters"][FIRST]["hash"]
        return rows

    found = only(alarms_of(stuck(2), stuck(1)))
    assert (found.rule, found.tensor, found.severe) == ("unmoved", FIRST, False)
    # once may be a coincidence
    assert alarms_of(stuck(1), BEFORE) == []
    # a warm-up from nothing, and a gradient of nothing
    for field, value in (("lr", [0.0]), ("lr", [1e-8])):
        rows = [[row | {field: value} for row in stuck(step)] for step in (1, 2)]
        assert alarms_of(rows[1], rows[0]) == []
    both = [stuck(1), stuck(2)]
    for rows in both:
        for row in rows:
            row["gradients"][FIRST] = {"hash": "0", "norm": 0.0, "sketch": [0.0] * 8}
            row["own"][FIRST] = [0.0] * 8
    assert alarms_of(both[1], both[0]) == []


def test_a_parameter_without_gradient_twice() -> None:
    before = rows_of(0, own_of(0, 2), without_gradient=["spare"])
    found = only(at_step_1(last=before, without_gradient=["spare"]))
    assert (found.rule, found.tensor) == ("no gradient", "spare")
    assert not found.severe
    assert at_step_1(without_gradient=["spare"]) == []


def test_a_parameter_in_no_optimizer() -> None:
    found = only(at_step_1(not_held=["spare"]))
    assert (found.rule, found.tensor, found.severe) == ("not held", "spare", False)


# data


def samples_of(rank: int, step: int = 1) -> list[list[str]]:
    inputs: list[list[str]] = rows_of(step, own_of(step, 2))[rank]["inputs"]
    return inputs


def test_ranks_read_the_same_samples() -> None:
    found = only(at_step_1(inputs=samples_of(0)))
    assert (found.rule, found.ranks, found.severe) == ("inputs", [1], True)
    assert "exactly the samples of rank 0" in found.line
    assert "DistributedSampler" in found.line


def test_one_sample_a_step_may_be_the_same_once() -> None:
    before = rows_of(0, own_of(0, 2), inputs=[["x"]])
    assert at_step_1(inputs=[["a"]]) == []
    found = only([o for o in at_step_1(last=before, inputs=[["a"]]) if o.severe])
    assert (found.rule, found.ranks) == ("inputs", [1])
    # a benchmark on one sample
    assert not [one for one in at_step_1(last=before, inputs=[["x"]]) if one.severe]


def test_samples_that_are_repeated() -> None:
    twice = [["a", "a", "b", "c"]]
    before = rows_of(0, own_of(0, 2), inputs=on_rank(1, twice, samples_of(0, 0)))
    changes = {"inputs": on_rank(1, [["d", "d", "e", "f"]], samples_of(0))}
    found = only(at_step_1(last=before, **changes))
    assert (found.rule, found.severe) == ("inputs", False)
    assert "a rank reads a sample several times" in found.line
    assert at_step_1(**changes) == []


def test_some_samples_that_several_ranks_read() -> None:
    def shared(step: int) -> dict[str, Any]:
        first, second = samples_of(0, step), samples_of(1, step)
        return {"inputs": on_rank(1, [[first[0][0], *second[0][1:]]], first)}

    before = rows_of(0, own_of(0, 2), **shared(0))
    found = only(at_step_1(last=before, **shared(1)))
    assert "several ranks read the same sample" in found.line
    assert at_step_1(**shared(1)) == []


def test_samples_that_cannot_be_read() -> None:
    why = "RuntimeError: no"
    found = only(at_step_1(inputs=[[]], unread=on_rank(1, why, "")))
    assert (found.rule, found.ranks, found.severe) == ("inputs", [1], False)
    assert "samples are not recorded: RuntimeError: no" in found.line
    assert only(at_step_1(inputs=[[]], unread=why)).ranks == []


def test_the_batch_of_the_step_before_again() -> None:
    before = rows_of(0, own_of(0, 2), inputs=samples_of)
    found = only(at_step_1(last=before, inputs=samples_of))
    assert (found.rule, found.ranks, found.severe) == ("same batch", [], False)
    assert "the batch of step 0 again" in found.line
    assert "loader workers with the same random state" in found.line


def test_unlike_numbers_of_samples() -> None:
    found = only(at_step_1(inputs=on_rank(1, [["a", "b"]], samples_of(0))))
    assert (found.rule, found.severe) == ("number of samples", False)
    assert "4, 2 samples on ranks in order" in found.line


# progress


def test_unlike_numbers_of_forward_passes() -> None:
    found = only(at_step_1(forwards=on_rank(1, 5, 2)))
    assert (found.rule, found.ranks, found.severe) == ("steps", [1], False)
    assert "4 forward passes for this step, but elsewhere 1" in found.line
    # told at the step at which it happened alone
    before = [row | {"forwards": rank} for rank, row in enumerate(BEFORE)]
    assert at_step_1(last=before, forwards=lambda rank: 2 + rank) == []


def test_unlike_steps() -> None:
    rows = rows_of(1, OWN)
    rows[1] |= {"step": 2}
    found = only(alarms_of(rows, BEFORE))
    assert (found.rule, found.ranks) == ("steps", [1])
    assert "at step 2, while the others are at step 1" in found.line
    rows[1] = {"kind": "end", "steps": {"0": 1}, "forwards": 1}
    assert "at the end, while the others" in only(alarms_of(rows, BEFORE)).line


def test_buffers_unlike_as_the_forward_pass_begins() -> None:
    zero, one = ({"running_mean": {"hash": digit}} for digit in "01")
    unlike = on_rank(1, zero, one)
    found = only(at_step_1(buffers=unlike, broadcast_buffers=True))
    assert (found.rule, found.tensor) == ("buffers", "running_mean")
    assert (found.ranks, found.severe) == ([1], True)
    assert "not broadcast before the forward pass" in found.line
    # by the setting, or without a wrapper, a rank has its own
    for told in (
        {"broadcast_buffers": False},
        {"broadcast_buffers": None, "wrapper": ""},
    ):
        found = only(at_step_1(buffers=unlike, **told))
        assert (found.rule, found.severe) == ("buffers", False)
        assert "no wrapper broadcasts them" in found.line


def test_a_wrapper_made_anew() -> None:
    found = only(at_step_1(wrapper_id=2))
    assert (found.rule, found.severe) == ("wrapper", False)
    assert at_step_1(last=rows_of(0, OWN, wrapper_id=2), wrapper_id=2) == []
    # not wrapped at first
    assert at_step_1(last=rows_of(0, OWN, wrapper_id=0), wrapper_id=1) == []


def test_synchronized_more_often_than_needed() -> None:
    found = only(at_step_1(syncs=[True, True, True], reductions=3))
    assert (found.rule, found.severe) == ("synchronization", False)
    assert "synchronized 3 times" in found.line
    assert at_step_1(syncs=[False, False, True], reductions=1) == []
    # several passes, one backward pass
    assert at_step_1(syncs=[True, True], reductions=1) == []


def test_ranks_that_draw_the_same_random_numbers() -> None:
    found = only(at_step_1(draws=True, random="0"))
    assert (found.rule, found.severe) == ("random numbers", False)
    assert "ranks 0, 1 draw the same" in found.line
    assert at_step_1(draws=True) == []
    assert at_step_1(random="0") == []


# start and end


def test_unlike_models() -> None:
    usual = headers(2)
    assert alarms_at_start(usual) == []
    parameters = usual[0]["parameters"]
    more = parameters | {"head": {"shape": [1], "dtype": "float32", "trained": True}}
    found = only(alarms_at_start(headers(2, parameters=on_rank(1, more, parameters))))
    assert (found.rule, found.tensor, found.ranks) == ("model", "head", [1])
    assert "but elsewhere not there" in found.line


def test_unlike_weights_at_the_start() -> None:
    start = headers(2)[0]["start"]
    other = start | {FIRST: digest(random_tensors(7)[FIRST])}
    found = only(alarms_at_start(headers(2, start=on_rank(1, other, start))))
    assert (found.rule, found.tensor, found.ranks) == ("parameters", FIRST, [1])
    assert "rank 0's weights are not broadcast" in found.line


def test_unlike_settings() -> None:
    found = only(alarms_at_start(headers(2, every=on_rank(1, 10, 1))))
    assert (found.rule, found.severe) == ("settings", True)
    assert "every = 10, but elsewhere 1" in found.line
    assert not only(alarms_at_start(headers(2, torch=on_rank(1, "2.0", "1")))).severe


def test_unlike_numbers_of_steps_at_the_end() -> None:
    ends = [{"kind": "end", "steps": {"0": n}, "forwards": n} for n in (5, 4)]
    found = only(alarms_at_end(ends))
    assert (found.rule, found.ranks, found.step) == ("steps", [1], 5)
    assert "4 steps, but elsewhere 5" in found.line
    assert alarms_at_end(ends[:1] * 2) == []
    assert only(alarms_at_end([ends[0], None])).ranks == [1]


def test_where_passes_or_steps_alone_were_seen_it_is_noted() -> None:
    ends = [
        {"kind": "end", "steps": steps, "forwards": passes}
        for steps, passes in (({}, 7), ({"0": 4, "1": 1}, 0), ({}, 0))
    ]
    found = [alarms_at_end([end] * 2) for end in ends]
    assert [one.line for told in found for one in told] == [
        "minitrain: note: step 0: steps: 7 passes and no step; probable cause: no "
        "optimizer of the model makes them",
        "minitrain: note: step 5: steps: 5 steps and no forward pass of the training; "
        "probable cause: the model is in eval(), or not called itself: data is not "
        "recorded",
    ]


# over a run


def test_a_judge_tells_a_fault_once() -> None:
    judge = Judge()
    assert judge.see(headers(2)) == []
    assert only(judge.see(rows_of(0, OWN, OWN))).rule == "gradients"
    assert judge.see(rows_of(1, OWN, OWN, inputs=samples_of)) == []


def test_a_note_does_not_hide_an_alarm_of_the_same_rule() -> None:
    judge = Judge()
    total = scaled(mean(OWN), 2)
    assert not only(judge.see(rows_of(0, OWN, [total] * 2))).severe
    part = {name: OWN[1][name] / 2 for name in SHAPES}
    found = only(judge.see(rows_of(1, OWN, [part] * 2, inputs=samples_of)))
    assert (found.rule, found.severe, found.ranks) == ("mean", True, [0])
    # each once
    for gradients in (total, part):
        step = 2 + (gradients is part)
        inputs = partial(samples_of, step=step)
        assert judge.see(rows_of(step, OWN, [gradients] * 2, inputs=inputs)) == []
    assert not only(judge.see(headers(2, threads=on_rank(1, 2, 1)))).severe
    assert only(judge.see(headers(2, every=on_rank(1, 10, 1)))).severe


def test_ranks_apart_by_rounding_have_parameters_apart() -> None:
    judge = Judge()
    got = {name: tensor * (1 + 2e-7) for name, tensor in mean(OWN).items()}
    rows = rows_of(0, OWN, [mean(OWN), got])
    assert rows[0]["parameters"] != rows[1]["parameters"]
    assert [one.rule for one in judge.see(rows)] == ["gradients"]
    (found,) = judge.see(rows_of(1, OWN, OWN, inputs=samples_of))
    assert (found.rule, found.severe) == ("gradients", True)


def test_a_judge_knows_a_batch_of_an_epoch_before() -> None:
    judge = Judge()
    for step in range(4):
        assert judge.see(rows_of(step, own_of(step, 2))) == []
    rows = rows_of(4, OWN, inputs=lambda rank: samples_of(rank, 0))
    found = only(judge.see(rows))
    assert (found.rule, found.step) == ("same batch", 4)
    assert "the batch of step 0 again" in found.line
    assert "set_epoch" in found.line


def test_a_judge_has_nothing_to_say_after_ranks_are_at_unlike_steps() -> None:
    judge = Judge()
    rows = rows_of(1, OWN)
    rows[1] |= {"step": 2}
    assert only(judge.see(rows)).rule == "steps"
    assert judge.see(rows_of(2, OWN, OWN)) == []


def test_an_alarm_is_a_line_of_a_recording() -> None:
    found = only(at_step_1(OWN))
    assert found.row() == {
        "kind": "alarm",
        "rule": "gradients",
        "step": 1,
        "ranks": [1],
        "tensor": FIRST,
        "line": found.line,
    }
    assert only(at_step_1(not_held=["x"])).row()["kind"] == "note"


# what a hostile reader planted


def test_settings_unlike_on_ranks() -> None:
    def groups(decay: float) -> list[dict[str, Any]]:
        settings = {"weight_decay": decay, "betas": [0.9, 0.999]}
        return [{"parameters": [*SHAPES], "settings": settings}]

    found = only(at_step_1(groups=on_rank(1, groups(0.3), groups(0.0))))
    assert (found.rule, found.ranks) == ("optimizer settings", [1])
    assert (found.tensor, found.severe) == (next(iter(SHAPES)), True)
    assert "weight_decay = 0.3, but elsewhere 0.0" in found.line
    assert at_step_1(groups=on_rank(1, groups(0.3), [])) == []


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


def test_few_tensors_that_are_noted_hide_no_many() -> None:
    judge = Judge()
    judge.see(headers(2))
    said = []
    for step in range(8):
        lacks = ["layer.bias"] if step < 4 else [*SHAPES]
        said += judge.see(rows_of(step, own_of(step, 2), without_gradient=lacks))
    assert [(one.rule, one.step) for one in said] == [
        ("no gradient", 1),
        ("no gradient", 5),
    ]


def test_a_table_that_comes_first_is_no_sample() -> None:
    table = [["0000", "0001"]]
    same = {"inputs": table, "beside": ["aa"]}
    assert only(at_step_1(**same)).rule == "inputs"
    own = {"inputs": table, "beside": on_rank(1, ["aa"], ["bb"])}
    last = rows_of(0, OWN, inputs=table, beside=on_rank(1, ["cc"], ["dd"]))
    assert at_step_1(last=last, **own) == []


def test_parameters_that_part_after_the_last_recorded_step() -> None:
    prints = [
        {name: fingerprint(tensor) for name, tensor in random_tensors(seed).items()}
        for seed in (1, 2)
    ]
    end = {"kind": "end", "steps": {"0": 5}, "forwards": 5}
    ends = [end | {"parameters": one} for one in prints]
    found = only(alarms_at_end(ends, [rows_of(1, OWN)]))
    assert (found.rule, found.ranks, found.step) == ("parameters", [1], 5)
    assert alarms_at_end([ends[0]] * 2, [rows_of(1, OWN)]) == []
    # they had parted before, and it was told
    assert alarms_at_end(ends, [apart_by(0.1)]) == []


def test_a_buffer_that_is_no_more_finite() -> None:
    def full(value: float) -> dict[str, Any]:
        return {"running_mean": fingerprint(torch.full((4,), value))}

    finite, lost = full(1.0), full(math.inf)
    last = rows_of(0, OWN, buffers=finite)
    found = only(at_step_1(last=last, buffers=lost))
    assert (found.rule, found.tensor) == ("not finite", "running_mean")
    # as a mask is from the beginning
    assert at_step_1(last=rows_of(0, OWN, buffers=lost), buffers=lost) == []
