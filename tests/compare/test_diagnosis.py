"""The locator: places and causes from hand-made evidence."""

from typing import Any

import pytest
import torch
from torch import Tensor

from minitrain.compare.align import combination
from minitrain.compare.causes import UNKNOWN, cause_in_buffers
from minitrain.compare.diagnosis import (
    Divergence,
    Values,
    cause_in_data,
    cause_in_gradients,
    cause_of,
    cause_of_pair,
    locate,
)
from minitrain.compare.difference import NOT_RESTORED
from minitrain.proof.first_difference import first_difference

# each rank's share of the right gradient, of targets 1 : 3
OWN = [torch.tensor([1.0, 0.0, 2.0, 0.5]), torch.tensor([0.0, 3.0, -1.0, 0.25])]
SHARES = [0.25, 0.75]
RIGHT = OWN[0] + OWN[1]
START = torch.tensor([1.0, 2.0, 3.0, 4.0])


def state(
    gradient: Tensor, before: Tensor = START, after: Tensor | None = None
) -> dict[str, Any]:
    after = before[: len(gradient)] - 0.5 * gradient if after is None else after
    named = {"before": before, "gradients": gradient, "after": after}
    return {name: {"w": tensor} for name, tensor in named.items()}


def values(*gradients: Tensor, **first: Tensor) -> Values:
    """Ranks with these gradients; ``first`` changes what rank 0 has."""
    ranks = [state(gradient) for gradient in gradients]
    for name, tensor in first.items():
        ranks[0][name] = {"w": tensor}
    replay = state(RIGHT) | {"own": [{"w": own} for own in OWN]}
    return Values(ranks, replay, SHARES)


BOTH = [0, 1]
GRADIENTS = {
    "sum": (values(2 * RIGHT, 2 * RIGHT), BOTH, "2 times the mean: summed"),
    "twice divided": (values(RIGHT / 2, RIGHT / 2), BOTH, "divided by the number"),
    "scaled": (values(5 * RIGHT, 5 * RIGHT), BOTH, "5 times the mean: a scaled"),
    "nobody": (values(2 * OWN[0], 2 * OWN[1]), BOTH, "keep their own gradients: 0, 1"),
    "one alone": (values(RIGHT, 2 * OWN[1]), [1], "keep their own gradients: 1"),
    "one missing": (values(OWN[0], OWN[0]), BOTH, "rank 1 is missing from the sum"),
    # equal weights: half of each rank's mean, which is its share divided by 0.25, 0.75
    "mean of means": (
        values(*[OWN[0] / 0.5 + OWN[1] / 1.5] * 2),
        BOTH,
        "a mean of means",
    ),
    "last bits": (values(*[RIGHT * (1 + 2**-22)] * 2), BOTH, "rounding only"),
    "other weights": (
        values(RIGHT + 1, RIGHT + 1, before=START + 1),
        BOTH,
        "rank 0 starts from other weights",
    ),
    "anything": (values(*[RIGHT.flip(0)] * 2), BOTH, UNKNOWN),
    "another length": (values(*[RIGHT[:2]] * 2), BOTH, UNKNOWN),
}


@pytest.mark.parametrize(
    ("evidence", "ranks", "cause"), GRADIENTS.values(), ids=GRADIENTS.keys()
)
def test_cause_in_gradients(evidence: Values, ranks: list[int], cause: str) -> None:
    assert cause in cause_in_gradients(ranks, evidence)


def test_low_precision_is_told_by_the_values_themselves() -> None:
    own = [{"w": torch.tensor([1.001, 0.333])}, {"w": torch.tensor([0.1, 2.7])}]
    right = own[0]["w"] + own[1]["w"]
    replay = state(right, START[:2]) | {"own": own}
    for dtype, name in ((torch.bfloat16, "bfloat16"), (torch.float16, "float16")):
        rank = state(right.to(dtype).float(), START[:2])
        cause = cause_in_gradients(BOTH, Values([rank, rank], replay, SHARES))
        assert cause == f"reduced in lower precision ({name})"


@pytest.mark.parametrize(
    ("step", "cause"),
    [
        (RIGHT / 4, "the learning rate is divided by the number of processes"),
        (RIGHT * 1.5, "a step 3 times as long: another learning rate"),
        (RIGHT.sign(), NOT_RESTORED),
    ],
)
def test_cause_in_a_step(step: Tensor, cause: str) -> None:
    evidence = values(RIGHT, RIGHT, after=START - step)
    assert cause_of("parameters", [0], evidence) == cause


def test_buffers_of_the_others() -> None:
    assert "not broadcast" in cause_in_buffers([1, 2], 3)
    assert cause_in_buffers([0, 1, 2], 3) == UNKNOWN


def test_combination_by_hand() -> None:
    factors, rest = combination(3 * OWN[0] - OWN[1], OWN)
    assert factors == pytest.approx([3, -1])
    assert rest == pytest.approx(0, abs=1e-12)
    # what is orthogonal to all parts is left
    _, rest = combination(torch.tensor([0.0, 1.0]), [torch.tensor([1.0, 0.0])])
    assert rest == pytest.approx(1)


def batch(step: int, sha256: str, *ranks: str, repeated: int = 0) -> dict[str, Any]:
    row = {"kind": "batch", "step": step, "sha256": sha256, "ranks": list(ranks)}
    return row | {"repeated": repeated}


def test_causes_in_data() -> None:
    right = batch(4, "r", "a", "b")
    earlier = [batch(0, "x", "a", "c")]
    twice = batch(4, "t", "a", "a", repeated=1)
    assert "duplicated (1)" in cause_in_data(twice, right, earlier)
    again = batch(4, "x", "a", "c")
    assert "batch of step 0 again" in cause_in_data(again, right, earlier)
    one = batch(4, "y", "a", "z")
    assert (
        cause_in_data(one, right, earlier) == "rank 1 reads other samples than its own"
    )
    assert "on all ranks" in cause_in_data(batch(4, "y", "p", "q"), right, earlier)


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


def located(run: list[dict[str, Any]]) -> Divergence | None:
    return locate(run, clean(), lambda step, what, ranks: UNKNOWN)


def test_nothing_differs() -> None:
    assert located(clean()) is None


def test_first_step_and_there_the_first_thing() -> None:
    later = [row for row in clean() if row["step"] != 1]
    run = later + rows(1, r1_parameters="x", r1_gradients="x")
    run += [batch(1, "d1", "a", "b")]
    found = located(run)
    assert found is not None
    assert (found.step, found.what, found.tensor, found.ranks) == (
        1,
        "gradients",
        "w",
        [1],
    )


def test_data_comes_before_what_it_changes() -> None:
    run = [row for row in clean() if row["step"] != 1]
    run += [*rows(1, r0_gradients="x"), batch(1, "other", "a", "z")]
    found = located(run)
    assert found is not None
    assert str(found) == (
        "step 1: data, rank 1; probable cause: rank 1 reads other samples than its own"
    )


def test_cause_is_asked_for_once_with_the_place() -> None:
    asked = []

    def remember(step: int, what: str, ranks: list[int]) -> str:
        asked.append((step, what, ranks))
        return "a reason"

    run = [row for row in clean() if row["kind"] == "batch" or row["step"] != 2]
    run += rows(2, r0_gradients="x", r1_gradients="x")
    found = locate(run, clean(), remember)
    assert asked == [(2, "gradients", [0, 1])]
    assert found is not None
    assert found.cause == "a reason"


@pytest.mark.parametrize(
    ("ours", "ranks", "cause"),
    [
        (2.0 * RIGHT, BOTH, "2 times as large: summed instead of averaged"),
        (RIGHT / 2, BOTH, "0.5 times as large: divided by the number of processes"),
        (3.0 * RIGHT, BOTH, "3 times as large: a scaled loss"),
        (RIGHT * (1 + 2**-22), BOTH, "rounding only: another order of summation"),
        (RIGHT, [1], "rank 1 only: it trains alone, or has other weights"),
        (RIGHT.flip(0), BOTH, UNKNOWN),
        (RIGHT[:2], BOTH, UNKNOWN),
    ],
)
def test_cause_of_a_pair(ours: Tensor, ranks: list[int], cause: str) -> None:
    assert cause_of_pair({"w": ours}, {"w": RIGHT}, ranks, 2).startswith(cause)


def test_the_first_tensor_is_the_same_in_every_process() -> None:
    """Of names that only the replay has, the first that it recorded; no set decides."""
    names = [f"layer{number}.weight" for number in range(20)]
    rows = [{"kind": "tensors", "step": 0, "rank": 0, "gradients": {}}]
    wanted = [rows[0] | {"gradients": dict.fromkeys(names, "sha")}]
    found = first_difference(rows, wanted, ["gradients"])
    assert found is not None
    assert found.tensor == names[0]
