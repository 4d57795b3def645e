"""Places and causes of differences, from hand-made evidence."""

from typing import Any

import pytest
import torch
from torch import Tensor

from minitrain.compare.diagnosis import Values, cause_in_run_data, cause_of, locate
from minitrain.compare.difference import UNKNOWN, Cause, Difference, Why
from minitrain.proof.evidence import first_difference

# each rank's share of the right gradient, of targets 1 : 3; 16 bits do not hold its end
OWN = [torch.tensor([1.0, 0.0, 2.0, 0.333]), torch.tensor([0.0, 3.0, -1.0, 7e-4])]
SHARES = [0.25, 0.75]
RIGHT = OWN[0] + OWN[1]
START = torch.tensor([1.0, 2.0, 3.0, 4.0])
BOTH = [0, 1]


def state(gradient: Tensor, after: Tensor | None = None) -> dict[str, Any]:
    before = START[: len(gradient)]
    after = before - 0.5 * gradient if after is None else after
    named = {"before": before, "gradients": gradient, "after": after}
    return {name: {"w": tensor} for name, tensor in named.items()}


REPLAY = state(RIGHT) | {"own": [{"w": own} for own in OWN]}


# causes of real bugs are in tests/studies/test_bugs.py
@pytest.mark.parametrize(
    ("gradient", "cause", "facts"),
    [
        (RIGHT * 2, Cause.SUMMED, {"factor": pytest.approx(2.0)}),
        (RIGHT / 2, Cause.AVERAGED_TWICE, {"factor": pytest.approx(0.5)}),
        (RIGHT * 3, Cause.SCALED, {}),
        (RIGHT * (1 + 2**-22), Cause.ROUNDING, {}),
        (RIGHT.flip(0), Cause.UNKNOWN, {}),
        (RIGHT[:2], Cause.UNKNOWN, {}),
        (RIGHT * torch.nan, Cause.UNKNOWN, {}),
        (RIGHT.bfloat16().float(), Cause.REDUCED, {"dtype": "bfloat16"}),
        (RIGHT.half().float(), Cause.REDUCED, {"dtype": "float16"}),
    ],
)
def test_cause_in_gradients(
    gradient: Tensor, cause: Cause, facts: dict[str, Any]
) -> None:
    """With the ranks' own gradients, as of a replay, and without, as of two runs."""
    ours = [state(gradient)] * 2
    for values in (Values(ours, REPLAY, SHARES), Values(ours, state(RIGHT), [])):
        found = cause_of("gradients", BOTH, values)
        assert found.cause == cause
        assert found.facts == {**found.facts} | facts
        assert str(found)


def test_missing_rank_shows_in_own_gradients() -> None:
    found = cause_of("gradients", BOTH, Values([state(OWN[0])] * 2, REPLAY, SHARES))
    assert (found.cause, found.facts["ranks"]) == (Cause.MISSING, [1])


def test_rate_that_is_multiplied() -> None:
    evidence = Values([state(RIGHT, START - RIGHT)] * 2, state(RIGHT), SHARES)
    assert cause_of("parameters", [0], evidence).cause == Cause.RATE_MULTIPLIED


def batch(step: int, sha256: str, *ranks: str) -> dict[str, Any]:
    row = {"kind": "batch", "step": step, "sha256": sha256, "ranks": list(ranks)}
    return row | {"repeated": 0}


@pytest.mark.parametrize(
    ("ours", "cause", "facts"),
    [
        (batch(4, "x", "a", "c"), Cause.BATCH_AGAIN, {"step": 0}),
        (batch(4, "y", "a", "z"), Cause.SAMPLES, {"who": [1]}),
        (batch(4, "y", "p", "q"), Cause.ORDER, {}),
    ],
)
def test_causes_in_data(ours: Any, cause: Cause, facts: dict[str, Any]) -> None:
    right, earlier = batch(4, "r", "a", "b"), [batch(0, "x", "a", "c")]
    found = cause_in_run_data(ours, right, earlier)
    assert (found.cause, {**found.facts} | facts) == (cause, {**found.facts})


def rows(step: int, **changed: str) -> list[dict[str, Any]]:
    """Two ranks at ``step``; ``r1_gradients="x"`` changes a hash."""
    return [
        {"kind": "tensors", "step": step, "rank": rank}
        | {
            what: {"w": changed.get(f"r{rank}_{what}", f"{what}{step}")}
            for what in ("gradients", "parameters", "buffers")
        }
        for rank in (0, 1)
    ]


def clean() -> list[dict[str, Any]]:
    batches = [batch(step, f"d{step}", "a", "b") for step in range(3)]
    return batches + [row for step in range(3) for row in rows(step)]


def located(run: list[dict[str, Any]]) -> Difference | None:
    return locate(run, clean(), lambda step, what, ranks: UNKNOWN)


def test_first_step_and_there_the_first_thing() -> None:
    assert located(clean()) is None
    later = [row for row in clean() if row["step"] != 1]
    run = later + rows(1, r1_parameters="x", r1_gradients="x")
    asked = []

    def explain(*place: Any) -> Why:
        asked.append(place)
        return Why(Cause.ROUNDING)

    found = locate([*run, batch(1, "d1", "a", "b")], clean(), explain)
    assert asked == [(1, "gradients", [1])]
    place = 1, "gradients", Why(Cause.ROUNDING)
    assert found == Difference(*place, tensor="w", ranks=(1,))
    # data come before what they change
    found = located([*run, batch(1, "other", "a", "z")])
    assert (
        str(found)
        == "step 1: data, rank 1; probable cause: other samples are read by rank 1"
    )


def test_the_first_tensor_is_the_same_in_every_process() -> None:
    """Of names that only the replay has, the first that it recorded; no set decides."""
    names = [f"layer{number}.weight" for number in range(20)]
    rows = [{"kind": "tensors", "step": 0, "rank": 0, "gradients": {}}]
    wanted = [rows[0] | {"gradients": dict.fromkeys(names, "sha")}]
    found = first_difference(rows, wanted, ["gradients"])
    assert found.tensor == names[0]


def test_what_16_bits_hold_on_both_sides_is_not_blamed_on_them() -> None:
    right = torch.tensor([1.0, 3.0, 1.0, 0.75])
    pair = Values([state(right.flip(0))] * 2, state(right), [])
    assert cause_of("gradients", BOTH, pair) == UNKNOWN
