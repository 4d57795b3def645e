"""The ladder: equal on clean input, a breach on every injected fault."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny import tiny_params
from torch import Tensor

from minitrain.analysis.rungs import Reason, Rung, not_run
from minitrain.core.params import Train
from minitrain.proof.bits import (
    bits_rung,
    data_rung,
    hashes_rung,
    ranks_rung,
    reduced_once_rung,
    trained_rung,
)
from minitrain.proof.evidence import Evidence
from minitrain.proof.tolerances import (
    close_rung,
    gradient_limits,
    loss_rung,
    one_process_rungs,
    state_limits,
)

State = dict[str, Tensor]
DEFAULT_RATE = 3e-4
DEFAULT_ATOL = 1e-5


def state(**changes: Tensor) -> State:
    """Two tensors, the second without dimensions."""
    return {"a": torch.tensor([1.0, -2.0, 0.5]), "b": torch.tensor(3.0), **changes}


FLIPPED = state(b=torch.nextafter(torch.tensor(3.0), torch.tensor(4.0)))
WITH_NAN = state(a=torch.tensor([1.0, math.nan, 0.5]))
FAULTS: dict[str, tuple[State, str, int | None]] = {
    "one bit": (FLIPPED, "b", 1),
    "NaN": (WITH_NAN, "a", None),
    "missing tensor": ({"a": state()["a"]}, "b", None),
    "another shape": (state(a=state()["a"].reshape(3, 1)), "a", None),
    "another dtype": (state(b=state()["b"].double()), "b", None),
}


def test_equal_bits() -> None:
    assert bits_rung(state(), state()) == Rung(True, 0, 0.0, "equal", "")
    assert ranks_rung([state()] * 3) == bits_rung(state(), state())
    # one rank proves nothing
    assert ranks_rung([state()]) == not_run(Reason.SINGLE_RANK)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("rank", [1, 2])
def test_rank_that_differs(fault: str, rank: int) -> None:
    other, tensor, max_ulp = FAULTS[fault]
    states = [state(), state(), state()]
    states[rank] = other
    rung = ranks_rung(states)
    assert (rung.verdict, rung.bytes_equal) == ("breach", False)
    assert rung.detail == f"rank {rank}: tensor {tensor} differs"
    alone = bits_rung(other, state())
    assert alone == replace(rung, detail=f"tensor {tensor} differs", max_ulp=max_ulp)
    assert bits_rung(state(), other) == alone


def hashes(step: int, rank: int, **parameters: str) -> dict[str, Any]:
    """A row of hashes; gradients end in ', buffers in +."""
    named = {"a": f"a{step}", "b": f"b{step}"} | parameters
    row: dict[str, Any] = {"kind": "tensors", "step": step, "rank": rank}
    row["parameters"] = named
    row["gradients"] = {name: f"{value}'" for name, value in named.items()}
    row["buffers"] = {name: f"{value}+{rank}" for name, value in named.items()}
    return row


EVERY = [(0, 0), (0, 10), (1, 0), (1, 10)]


def run_rows(*lacking: tuple[int, int], **changed: Any) -> list[dict[str, Any]]:
    """Two ranks, steps 0 and 10; ``r1s10={...}`` changes rank 1 at step 10. Rows of a
    (rank, step) in ``lacking`` are not there.
    """
    rows: list[dict[str, Any]]
    rows = [{"kind": "batch", "step": n, "sha256": f"d{n}"} for n in range(11)]
    for rank, step in EVERY:
        if (rank, step) not in lacking:
            rows.append(hashes(step, rank, **changed.get(f"r{rank}s{step}", {})))
    return rows


each = pytest.mark.parametrize("what", ["gradients", "parameters", "buffers"])


@each
@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({"r0s0": {"b": "x"}}, "step 0, tensor b, rank 0"),
        # an earlier step of a later rank
        ({"r0s10": {"a": "x"}, "r1s0": {"b": "x"}}, "step 0, tensor b, rank 1"),
        ({"r0s10": {"b": "x"}, "r1s10": {"a": "x"}}, "step 10, tensor b, rank 0"),
        # a tensor too many
        ({"r1s10": {"c": "x"}}, "step 10, tensor c, rank 1"),
    ],
)
def test_first_difference_of_hashes(what: Any, changed: Any, place: str) -> None:
    assert hashes_rung(run_rows(), run_rows(), what, 2).verdict == "equal"
    expected = Rung(False, None, None, "breach", f"first at {place}")
    assert hashes_rung(run_rows(**changed), run_rows(), what, 2) == expected
    # a surplus on one side or a gap on the other
    assert hashes_rung(run_rows(), run_rows(**changed), what, 2) == expected


@each
@pytest.mark.parametrize(
    ("run", "other"),
    [
        (run_rows((0, 10), (1, 10)), run_rows()),
        (run_rows((1, 10)), run_rows()),
        (run_rows(), run_rows((0, 0), (1, 0))),
        (run_rows(*EVERY), run_rows(*EVERY)),
    ],
    ids=["run lacks a step", "rank lacks a step", "replay lacks one", "nothing"],
)
def test_steps_that_were_not_recorded(what: Any, run: Any, other: Any) -> None:
    rung = hashes_rung(run, other, what, 2)
    assert (rung.verdict, rung.bytes_equal) == ("breach", False)


def test_model_without_buffers() -> None:
    rows = [row | {"buffers": {}} for row in run_rows()]
    assert hashes_rung(rows, rows, "buffers", 2) == not_run("the model has no buffers")
    # but not on one side only
    assert hashes_rung(rows, run_rows(), "buffers", 2).verdict == "breach"
    assert hashes_rung(run_rows(), rows, "buffers", 2).verdict == "breach"


def test_buffers_are_those_of_the_same_rank() -> None:
    swapped = [row | {"rank": 1 - row["rank"]} for row in run_rows() if "rank" in row]
    assert hashes_rung(swapped, run_rows(), "parameters", 2).verdict == "equal"
    rung = hashes_rung(swapped, run_rows(), "buffers", 2)
    assert rung.detail == "first at step 0, tensor a, rank 0"


def test_ranks_that_swapped_their_samples() -> None:
    """The global batch is equal, which suffices between different world sizes."""

    def ledger(*ranks: str, sha256: str = "ab") -> list[dict[str, Any]]:
        return [{"kind": "batch", "step": 0, "sha256": sha256, "ranks": [*ranks]}]

    assert data_rung(ledger("a", "b"), ledger("a", "b")).verdict == "equal"
    assert data_rung(ledger("c", sha256="c"), ledger("ab")).detail == "first at step 0"
    assert data_rung(ledger("b", "a"), ledger("a", "b")).detail == "first at step 0"
    assert data_rung(ledger("b", "a"), ledger("ab")).verdict == "equal"


def test_runs_of_unequal_length() -> None:
    shorter = [row for row in run_rows() if row["step"] < 8]
    for pair, detail in [
        ((shorter, run_rows()), "8 steps against 11"),
        ((run_rows(), shorter), "11 steps against 8"),
        (([], []), "0 steps against 0"),
    ]:
        assert data_rung(*pair) == Rung(False, None, None, "breach", detail)
    rows = run_rows()
    rows[4]["sha256"] = rows[7]["sha256"] = "x"
    assert data_rung(rows, run_rows()).detail == "first at step 4"


@pytest.mark.parametrize(
    ("stuck", "verdict", "detail"),
    [
        ({}, "passed", "2 of 2 tensors changed"),
        ({"a": "a0"}, "passed", "1 of 2 tensors changed, not a"),
        ({"a": "a0", "b": "b0"}, "breach", "0 of 2 tensors changed"),
    ],
)
def test_parameters_that_changed(
    stuck: dict[str, str], verdict: str, detail: str
) -> None:
    rung = trained_rung(run_rows(r0s10=stuck, r1s10=stuck))
    assert (rung.verdict, rung.detail) == (verdict, detail)


@pytest.mark.parametrize(
    ("scales", "verdict"),
    [
        ([4.0, 2.0, 1.0], "not run"),
        # an overflow, and then steps that changed nothing
        ([4.0, 2.0, 2.0], "breach"),
        ([4.0], "breach"),
        ([None, None], "breach"),
    ],
)
def test_steps_that_the_scaler_skipped_train_nothing(
    scales: list[float | None], verdict: str
) -> None:
    """Nor does a buffer that counts."""
    rows = [
        {"kind": "tensors", "step": step, "rank": 0, "gradients": {"a": "g"}}
        | {"parameters": {"a": "a0", "count": f"{step}"}}
        | {"precision": scale and {"scale": scale}}
        for step, scale in enumerate(scales)
    ]
    assert trained_rung(rows).verdict == verdict


def train(**changes: Any) -> Train:
    return tiny_params(**({"learning_rate": DEFAULT_RATE} | changes)).train


# exact numbers are float64; this tensor keeps the limits of float32
FLOAT32 = {"f": torch.zeros(0)}


def off_by(*gaps: float) -> State:
    """1000 zeros, the first of them replaced by ``gaps``."""
    tensor = torch.zeros(1000, dtype=torch.float64)
    tensor[: len(gaps)] = torch.tensor(gaps, dtype=torch.float64)
    return FLOAT32 | {"w": tensor}


def gradients_rung(run: State, one: State) -> Rung:
    return close_rung(run, one, gradient_limits(one), lambda: one)


def state_rung(
    run: State, one: State, params: Train, start: State | None = None
) -> Rung:
    """Rungs with a perturbed run that does not differ, so it excuses nothing."""
    limits = state_limits(one, start or off_by(), params, DEFAULT_ATOL)
    return close_rung(run, one, limits, lambda: one)


def gradients(gap: float, like: State) -> State:
    """The largest is 4; another, which should be 0, is off by ``gap``."""
    values = {"large": [1.0, -4.0], "small": [gap]}
    return like | {n: torch.tensor(v, dtype=torch.float64) for n, v in values.items()}


def of_gradients(gap: float, like: State) -> Rung:
    return gradients_rung(gradients(gap, like), gradients(0.0, like))


def of_sgd(gap: float, moved: float) -> Rung:
    params = train(optimizer="sgd", learning_rate=1.0)
    return state_rung(off_by(gap), off_by(), params, off_by(moved))


def of_float64(gap: float, optimizer: str) -> Rung:
    run, one = {"w": off_by(gap)["w"]}, {"w": off_by()["w"]}
    return state_rung(run, one, train(optimizer=optimizer), one)


@pytest.mark.parametrize(
    ("compared", "like", "limit"),
    [
        (of_gradients, FLOAT32, 4e-5),
        (of_gradients, {}, 4e-13),
        # large losses are no breach, and a tiny rate allows nothing
        *((of_sgd, 0.01 * size, 1e-6 * size) for size in (1.0, 1e-6, 1e6)),
        *((of_float64, optimizer, 1e-11) for optimizer in ("adamw", "sgd")),
    ],
)
def test_quick_limits(
    compared: Callable[[float, Any], Rung], like: Any, limit: float
) -> None:
    assert compared(0.0, like).verdict == "equal"
    for share in (0.999, -0.999):
        assert compared(share * limit, like).verdict == "within tolerance"
    for share in (1.001, math.inf, math.nan):
        assert compared(share * limit, like).verdict == "breach"


@pytest.mark.parametrize(
    ("gaps", "rate", "verdict"),
    [
        pytest.param([], 3e-4, "equal", id="none"),
        pytest.param([1e-5] * 1000, 3e-4, "within tolerance", id="all at atol"),
        pytest.param([2e-5], 3e-4, "within tolerance", id="999 of 1000 within atol"),
        pytest.param([2e-5, 2e-5], 3e-4, "breach", id="998 of 1000 within atol"),
        pytest.param([3e-4], 3e-4, "within tolerance", id="one at the rate"),
        pytest.param([math.nextafter(3e-4, 1)], 3e-4, "breach", id="beyond the rate"),
        # 1e-5 at 3e-4 is 1e-4 at 3e-3
        pytest.param([0.99e-4] * 1000, 3e-3, "within tolerance", id="larger rate"),
        pytest.param([1.01e-4] * 1000, 3e-3, "breach", id="beyond at a larger rate"),
    ],
)
def test_adamw_at_the_rate_of_atol(
    gaps: list[float], rate: float, verdict: str
) -> None:
    rung = state_rung(off_by(*gaps), off_by(), train(learning_rate=rate))
    assert rung.verdict == verdict


def against(run: State, state: State, twin: State, **changes: Any) -> dict[str, Rung]:
    """All rungs of a run with final state ``run``; one process ends in ``state``."""

    def made(state: State) -> Evidence:
        losses = [1.0, 0.9, 0.8]
        clean = {"draws_random_numbers": False, "changes_buffers": False}
        rows = [{"kind": "forward"} | clean]
        sampled = {f"0/gradients/{name}": tensor for name, tensor in off_by().items()}
        sampled |= {f"early/state/{name}": tensor for name, tensor in state.items()}
        return Evidence(rows, losses, [state], sampled, start=off_by())

    params = train(**changes)
    return one_process_rungs(made(run), made(state), params, 1e-5, lambda: made(twin))


@pytest.mark.parametrize(
    ("drift", "early", "final"),
    [
        (0.6, "within tolerance", "undecided"),
        (0.051, "within tolerance", "undecided"),
        pytest.param(0.049, "breach", "breach", id="less than a tenth as far"),
        (1e-6, "breach", "breach"),
        (math.nan, "breach", "breach"),
    ],
)
def test_what_a_twin_explains(drift: float, early: str, final: str) -> None:
    """A perturbed run that drifts as far shows that rounding explains the distance:
    within tolerance after a few steps, undecided after many.
    """
    rungs = against(off_by(0.5), off_by(), off_by(drift))
    assert rungs["one_process_early"].verdict == early
    assert rungs["one_process"].verdict == final
    assert rungs["one_process"].max_abs_diff == 0.5
    assert "tensor w is 0.5 off" in rungs["one_process"].detail
    short = against({}, {}, {})["one_process_early"]
    assert short == not_run("fewer than three steps")


def test_a_twin_excuses_only_the_tensors_that_it_carries() -> None:
    run = {"a": off_by(0.5)["w"], "b": off_by(0.5)["w"]} | FLOAT32
    one = {"a": off_by()["w"], "b": off_by()["w"]} | FLOAT32
    twin = one | {"a": off_by(0.5)["w"]}
    limits = state_limits(one, one, train(), DEFAULT_ATOL)
    rung = close_rung(run, one, limits, lambda: twin)
    assert rung.verdict == "breach"
    assert "tensor b is 0.5 off" in rung.detail
    # close results do not need the perturbed run
    near = run | {"b": off_by()["w"]}
    assert close_rung(near, one, limits, lambda: twin).verdict == "within tolerance"


# 2 of 2 elements of a bias are beyond atol, but only 2 of 2002 in all
BIAS = {"b": torch.full((2,), 2e-5), "w": torch.zeros(2000)}
# of weights in the thousands one unit in the last place is more than a step of AdamW
LARGE = {"w": torch.full((8,), 5000.0)}
LARGE_UP = {"w": LARGE["w"].nextafter(torch.tensor(torch.inf))}


@pytest.mark.parametrize(
    ("run", "one"),
    [(BIAS, {"b": torch.zeros(2), "w": torch.zeros(2000)}), (LARGE_UP, LARGE)],
    ids=["share of all tensors", "large values"],
)
def test_what_needs_no_twin(run: State, one: State) -> None:
    def never() -> State:
        raise AssertionError("no perturbed run is needed here")

    limits = state_limits(one, one, train(), DEFAULT_ATOL)
    assert close_rung(run, one, limits, never).verdict == "within tolerance"


@pytest.mark.parametrize(
    ("expected", "near", "far"),
    [(1.0, [1.04, -1.0], 1.06), (-1.0, [-1.0, -0.96], -0.94)],
)
def test_loss_may_be_five_percent_above(
    expected: float, near: list[float], far: float
) -> None:
    verdicts = [loss_rung([ours], [expected]).verdict for ours in [*near, far]]
    assert verdicts == ["within tolerance", "within tolerance", "breach"]


@pytest.mark.parametrize(
    ("layouts", "verdict", "detail"),
    [
        ([["ba"]], "passed", "2 tensors"),
        ([["ba"], ["b", "a"]], "passed", "2 tensors"),
        ([], "breach", "nothing was reduced"),
        ([["b"]], "breach", "step 0: a is never reduced"),
        ([["ba"], ["b", "a", "b"]], "breach", "step 1: b is reduced more than once"),
    ],
    ids=["once", "rebuilt", "not at all", "left out", "twice"],
)
def test_every_tensor_is_reduced_once(
    layouts: list[list[str]], verdict: str, detail: str
) -> None:
    """Layouts by step: the names of the tensors in each bucket."""
    rows = run_rows()
    for step, layout in enumerate(layouts):
        buckets = [{"parameters": [*names]} for names in layout]
        rows.append({"kind": "buckets", "step": step, "rank": 0, "buckets": buckets})
    rung = reduced_once_rung(rows)
    assert (rung.verdict, rung.detail) == (verdict, detail)


# a differs by rounding, which is allowed; b causes the undecided verdict
OFF_AND_NAN = state(a=state()["a"] + 2**-23, b=torch.tensor(math.nan))


@pytest.mark.parametrize(
    ("fault", "tensor"),
    [*((f, t) for f, t, ulp in FAULTS.values() if ulp is None), (OFF_AND_NAN, "b")],
)
def test_tolerance_does_not_excuse_what_cannot_be_compared(
    fault: State, tensor: str
) -> None:
    other = state()
    both = train(), train(optimizer="sgd")
    rungs = [state_rung(fault, other, params, other) for params in both]
    for rung in [gradients_rung(fault, other), *rungs]:
        assert (rung.verdict, rung.bytes_equal) == ("breach", False)
        expected = f"tensor {tensor} cannot be compared (NaN, shape or dtype)"
        assert rung.detail == expected


# counters, flags, a causal mask
BUFFERS = (
    torch.tensor([3, 4]),
    torch.tensor([True, False]),
    torch.full((64, 64), -math.inf).triu(1),
    torch.zeros(0),
)


@pytest.mark.parametrize("buffer", BUFFERS)
def test_buffers_of_any_kind_beside_parameters(buffer: Tensor) -> None:
    other = {"mask": buffer, "w": torch.ones(5000)}
    near = {"mask": buffer.clone(), "w": torch.ones(5000) + 2**-23}
    far = {"mask": buffer.clone(), "w": torch.ones(5000) + 0.01}
    for params in (train(), train(optimizer="sgd")):
        rungs = [state_rung(x, other, params, other) for x in (other, near, far)]
        verdicts = [rung.verdict for rung in rungs]
        assert verdicts == ["equal", "within tolerance", "breach"]
        assert "tensor w is 0.01 off" in rungs[2].detail


def test_a_rank_that_recorded_nothing_is_named() -> None:
    rows = [{"kind": "tensors", "step": 0, "rank": 0, "gradients": {"w": "aa"}}]
    assert hashes_rung(rows, rows, "gradients", 1).verdict == "equal"
    rung = hashes_rung(rows, rows, "gradients", 2)
    assert (rung.verdict, rung.detail) == ("breach", "rank 1 recorded nothing")


def test_nan_is_equal_to_nothing_not_even_to_the_same_nan() -> None:
    state = {"w": torch.tensor([1.0, float("nan")])}
    for rung in (bits_rung(state, state), ranks_rung([state, state])):
        assert rung.verdict == "breach"
        assert "w holds NaN" in rung.detail
    assert gradients_rung(state, state).verdict == "breach"
