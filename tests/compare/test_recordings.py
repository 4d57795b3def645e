"""Two recordings: the same computation, or the step, tensor, ranks and cause."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from one_line import refusal
from recorded import (
    BATCH,
    Normalized,
    Tensors,
    adamw,
    alter,
    dealt,
    mean,
    record,
    rows_of,
    sgd,
    write,
)
from torch import Tensor, nn
from torch.optim import AdamW

from minitrain.compare.recordings import compare_recordings

pytestmark = pytest.mark.slow

SEEDS = range(4)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Sound recordings, each made once."""
    folder = tmp_path_factory.mktemp("sound")

    def get(**changes: Any) -> Path:
        path = folder / "-".join(f"{k}={v}" for k, v in changes.items() if k != "model")
        path = path / changes.get("model", nn.Module).__name__
        return path if path.exists() else record(path, **changes)

    return get


BOTH, ALIKE = ((1, 2), (2, 2)), ((1, 1), (2, 2))
ONE_TWO, TWO = ((1, 2),), ((2, 2),)
ALL = ((1, 1), *BOTH)


@dataclass(frozen=True)
class Fault:
    """What is planted in B, and what must be said of it; ``sizes`` are the world sizes
    of A and B. ``sure`` says that no twin is needed, ``twin_tells`` that one
    would tell.
    """

    name: str
    what: str
    cause: str
    changes: dict[str, Any]
    step: int = 0
    sizes: tuple[tuple[int, int], ...] = BOTH
    tensor: str = ""
    ranks: str = ""
    sure: bool = True
    twin_tells: bool = True

    def __str__(self) -> str:
        return self.name


def planted(name: str, what: str, cause: str, **more: Any) -> Fault:
    of_fault = {key: more.pop(key) for key in {*more} & {*Fault.__annotations__}}
    return Fault(name, what, cause, more, **of_fault)


def summed(own: Sequence[Tensors], rank: int, step: int) -> Tensors:
    return {name: g * len(own) for name, g in mean(own, rank, step).items()}


def divided_twice(own: Sequence[Tensors], rank: int, step: int) -> Tensors:
    return {name: g / len(own) for name, g in mean(own, rank, step).items()}


def lost(own: Sequence[Tensors], rank: int, step: int) -> Tensors:
    """From step 3 on rank 1's gradient does not come: seen at step 10."""
    if step < 3:
        return mean(own, rank, step)
    return {name: gradient / len(own) for name, gradient in own[0].items()}


def for_a_while(own: Sequence[Tensors], rank: int, step: int) -> Tensors:
    """At steps 3 to 8: seen at step 10, by what came of it."""
    found = mean(own, rank, step)
    return {n: g.sign() for n, g in found.items()} if 3 <= step < 9 else found


def alone(own: Sequence[Tensors], rank: int, step: int) -> Tensors:
    return own[1] if rank == 1 else mean(own, rank, step)


def low_precision(own: Sequence[Tensors], rank: int, step: int) -> Tensors:
    return mean(
        [{n: g.bfloat16().float() for n, g in one.items()} for one in own], 0, 0
    )


def one_tensor(own: Sequence[Tensors], rank: int, step: int) -> Tensors:
    found = mean(own, rank, step)
    return found | {"hidden.bias": 0.5 * found["hidden.bias"]}


def one_unreduced(own: Sequence[Tensors], rank: int, step: int) -> Tensors:
    return mean(own, rank, step) | {"hidden.bias": own[rank]["hidden.bias"]}


def own_of_rank_0(own: Sequence[Tensors], rank: int, step: int) -> Tensors:
    return mean(own, rank, step) | {"hidden.bias": own[0]["hidden.bias"]}


def without_one(own: Sequence[Tensors], rank: int, step: int) -> Tensors:
    found = mean(own, rank, step)
    return {name: g for name, g in found.items() if name != "hidden.bias"}


def not_finite(own: Sequence[Tensors], rank: int, step: int) -> Tensors:
    found = mean(own, rank, step)
    return found | {"hidden.bias": found["hidden.bias"] * torch.nan} if step else found


def clipped(own: Sequence[Tensors], rank: int, step: int) -> Tensors:
    return {name: 0.37 * g for name, g in mean(own, rank, step).items()}


def same_for_all(step: int, world_size: int, order: Tensor) -> list[Tensor]:
    return [dealt(step, world_size, order)[0]] * world_size


def another_order(step: int, world_size: int, order: Tensor) -> list[Tensor]:
    return dealt(step, world_size, order.flip(0))


def one_other(step: int, world_size: int, order: Tensor) -> list[Tensor]:
    """From step 5 on a sample of rank 1 is another one: seen at step 10."""
    batches = [batch.clone() for batch in dealt(step, world_size, order)]
    if step >= 5:
        batches[1][0] = order[-1]
    return batches


def unlike_shares(step: int, world_size: int, order: Tensor) -> list[Tensor]:
    """Rank 0 reads ten samples of sixteen, and the mean is that of the ranks' means."""
    (batch,) = dealt(step, 1, order)
    return list(batch.split(10)) if world_size > 1 else [batch]


def again(step: int, world_size: int, order: Tensor) -> list[Tensor]:
    return dealt(min(step, 1), world_size, order)


def short(step: int, world_size: int, order: Tensor) -> list[Tensor]:
    *others, last = dealt(step, world_size, order)
    return [*others, last[:5]]


def smooth(found: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(found, targets, label_smoothing=0.1)


def doubled(found: Tensor, targets: Tensor) -> Tensor:
    return 2 * nn.functional.cross_entropy(found, targets)


def forget(step: int, models: Any, optimizers: Any) -> None:
    """The moments are lost after step 0, as in a run that is resumed without them."""
    if step == 0:
        for optimizer in optimizers:
            optimizer.state.clear()


def leave_out(models: Any, optimizers: Any) -> None:
    for model, optimizer in zip(models, optimizers, strict=True):
        group = optimizer.param_groups[0]
        group["params"] = [p for p in group["params"] if p is not model.out.bias]


def with_options(**options: Any) -> Callable[..., Any]:
    return lambda parameters, lr: AdamW(parameters, lr=lr, **options)


GRADIENTS, PARAMETERS = "gradients", "parameters"
FAULTS = [
    planted("sum", GRADIENTS, "summed instead of averaged in B", reduce=summed),
    planted(
        "sum, own unseen",
        GRADIENTS,
        "summed instead of averaged in B",
        reduce=summed,
        with_own=False,
    ),
    planted(
        "divided twice",
        GRADIENTS,
        "by the number of processes twice in B",
        reduce=divided_twice,
    ),
    planted("lost", GRADIENTS, "gradient of rank 1 is missing", step=10, reduce=lost),
    planted(
        "alone",
        GRADIENTS,
        "B: rank 1 keeps its own",
        reduce=alone,
        sizes=TWO,
        ranks="rank 1",
    ),
    planted(
        "alone, of one",
        GRADIENTS,
        "B: rank 1 keeps its own",
        reduce=alone,
        sizes=ONE_TWO,
        ranks="rank 1 of B",
    ),
    planted(
        "low precision",
        GRADIENTS,
        "B: reduced in lower precision?",
        reduce=low_precision,
    ),
    planted(
        "mean of means",
        GRADIENTS,
        "B: a mean of means",
        deal=unlike_shares,
        sizes=ONE_TWO,
    ),
    planted(
        "one tensor",
        GRADIENTS,
        "alone, hidden.bias 0.5 times as large",
        reduce=one_tensor,
        sizes=ALL,
        tensor="hidden.bias",
    ),
    planted(
        "one tensor unreduced",
        GRADIENTS,
        "hidden.bias is not synchronized",
        reduce=one_unreduced,
        tensor="hidden.bias",
    ),
    planted(
        "one tensor of rank 0",
        GRADIENTS,
        "1 of 12 tensors alone",
        reduce=own_of_rank_0,
        tensor="hidden.bias",
    ),
    planted(
        "without a gradient",
        GRADIENTS,
        "hidden.bias has no gradient in B",
        reduce=without_one,
        tensor="hidden.bias",
    ),
    planted("NaN", GRADIENTS, "not finite in B", step=1, reduce=not_finite),
    planted(
        "scaled after", GRADIENTS, "0.37 times as large: a scaled loss", reduce=clipped
    ),
    planted(
        "scaled loss",
        "own gradients",
        "2 times as large before any",
        loss=doubled,
        sizes=TWO,
    ),
    planted(
        "another loss",
        "own gradients",
        "backward pass is another",
        loss=smooth,
        sizes=ALIKE,
    ),
    planted(
        "another loss, of one",
        GRADIENTS,
        "the loss is not a mean over",
        loss=smooth,
        sizes=ONE_TWO,
    ),
    planted(
        "autocast",
        GRADIENTS,
        "computed in lower",
        autocast=True,
        sizes=ONE_TWO,
        sure=False,
        twin_tells=False,
    ),
    planted(
        "no sampler",
        "data",
        "all ranks of B read the same",
        deal=same_for_all,
        sizes=ONE_TWO,
    ),
    planted(
        "no sampler on rank 1",
        "data",
        "all ranks of B read the same",
        deal=same_for_all,
        sizes=TWO,
        ranks="rank 1",
    ),
    planted(
        "for a while", GRADIENTS, "part at a step between", step=10, reduce=for_a_while
    ),
    planted("order", "data", "another order", deal=another_order),
    planted(
        "one other sample",
        "data",
        "other samples among them",
        step=10,
        deal=one_other,
        sizes=ONE_TWO,
    ),
    planted(
        "one of rank 1",
        "data",
        "other samples among them",
        step=10,
        deal=one_other,
        sizes=TWO,
        ranks="rank 1",
    ),
    planted("batch again", "data", "B reads the batch of step 1", step=2, deal=again),
    planted("short batch", "data", "B reads a part", deal=short, sizes=ONE_TWO),
    planted(
        "learning rate",
        "learning rate",
        "B's learning rate is divided by",
        lr=lambda step: 0.0005,
    ),
    planted(
        "schedule",
        "learning rate",
        "1.1 times as large",
        step=10,
        lr=lambda step: 0.001 * (1.1 if step >= 5 else 1),
    ),
    planted(
        "weight decay",
        PARAMETERS,
        "another weight decay",
        optimizer=with_options(weight_decay=0.05),
    ),
    planted(
        "left out",
        PARAMETERS,
        "out.bias does not move in B",
        begin=leave_out,
        tensor="out.bias",
    ),
    planted(
        "moments lost",
        PARAMETERS,
        "lost or changed after step 0",
        step=1,
        after=forget,
        sizes=ALIKE,
    ),
    planted(
        "moments lost, of one",
        PARAMETERS,
        "not restored?",
        step=1,
        after=forget,
        sizes=ONE_TWO,
    ),
    planted(
        "betas, to the bit",
        "optimizer state",
        "another setting",
        optimizer=with_options(weight_decay=0.1, betas=(0.9, 0.95)),
        sizes=TWO,
    ),
    planted(
        "betas",
        PARAMETERS,
        "another setting",
        step=1,
        optimizer=with_options(weight_decay=0.1, betas=(0.9, 0.95)),
        sizes=ONE_TWO,
        sure=False,
    ),
    planted("seed", "start weights", "another seed", step=-1, seed=1),
]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_planted(fault: Fault, sound: Callable[..., Path], tmp_path: Path) -> None:
    for number, (of_a, of_b) in enumerate(fault.sizes):
        a = sound(world_size=of_a)
        b = record(tmp_path / str(number), world_size=of_b, **fault.changes)
        twin = sound(world_size=of_a, twin=True)
        for found in (compare_recordings(a, b), compare_recordings(a, b, twin)):
            sure = fault.sure or (found.twin and fault.twin_tells)
            assert found.verdict == ("different" if sure else "undecided")
            first = found.first
            assert first
            assert (first.step, first.what) == (fault.step, fault.what)
            assert fault.cause in first.cause
            assert first.tensor == fault.tensor or not fault.tensor
            assert first.ranks == fault.ranks
            marks = {s.step: s.mark for s in found.steps}
            if fault.step in marks and fault.step:
                before = [mark for step, mark in marks.items() if step < fault.step]
                assert {*before} <= {"=", "~"}
        # which of the two is the right one cannot be told from this alone
        assert not compare_recordings(b, a).same


@pytest.mark.parametrize("optimizer", [adamw, sgd])
def test_sound_ones_are_never_called_different(optimizer: Any, tmp_path: Path) -> None:
    """Of one, two and four ranks, without a twin and with one."""
    for seed in SEEDS:
        plan = {"seed": seed, "optimizer": optimizer, "steps": 12, "every": 5}
        a = record(tmp_path / f"{seed}-1", **plan)
        twin = record(tmp_path / f"{seed}-twin", twin=True, **plan)
        size = 4 if seed % 2 else 2
        b = record(tmp_path / f"{seed}-{size}", world_size=size, **plan)
        same = "same computation within rounding"
        for pair in ((a, b), (a, b, twin)):
            assert verdict(*pair) == same, (seed, pair)
        # A twin is another start: where a gradient is nothing but rounding (the bias of
        # a key), AdamW makes a whole step of it, in another direction.
        for pair in ((b, twin), (a, twin)):
            assert verdict(*pair) in (same, "undecided"), (seed, pair)


def verdict(a: Path, b: Path, twin: Path | None = None) -> str:
    return compare_recordings(a, b, twin).verdict


@pytest.mark.parametrize("world_size", [1, 2])
def test_sound_ones_in_16_bits_are_undecided(world_size: int, tmp_path: Path) -> None:
    """Their twin stays too near: bfloat16 does not have the unit that it moved."""
    a, b, twin = (
        record(tmp_path / name, autocast=True, steps=12, **plan)
        for name, plan in (
            ("a", {}),
            ("b", {"world_size": 2 * world_size}),
            ("twin", {"twin": True}),
        )
    )
    for found in (compare_recordings(a, b), compare_recordings(a, b, twin)):
        assert found.verdict == "undecided"
        assert found.first
        assert "computed in lower precision" in found.first.cause
        assert {step.mark for step in found.steps} <= {"?", "~"}


@pytest.mark.parametrize("world_size", [1, 2])
def test_run_made_twice(sound: Any, tmp_path: Path, world_size: int) -> None:
    again = record(tmp_path / "again", world_size=world_size)
    found = compare_recordings(sound(world_size=world_size), again)
    assert found.verdict == "equal bits"
    assert {step.mark for step in found.steps} == {"="}
    assert (found.asides, found.alarms) == ([], {"A": [], "B": []})


def test_samples_dealt_to_other_ranks_are_the_same_data(
    sound: Any, tmp_path: Path
) -> None:
    def backwards(step: int, world_size: int, order: Tensor) -> list[Tensor]:
        return dealt(step, world_size, order)[::-1]

    b = record(tmp_path / "b", world_size=2, deal=backwards)
    # a sum of two has no order
    assert verdict(sound(world_size=2), b) == "equal bits"
    assert verdict(sound(world_size=1), b) == "same computation within rounding"


def test_other_versions_and_machines_are_said(sound: Any, tmp_path: Path) -> None:
    header = {"torch": "2.9.0", "threads": 8, "device": "cuda"}
    b = record(tmp_path / "b", world_size=2, every=5, header=header)
    found = compare_recordings(sound(world_size=1), b)
    assert found.verdict == "same computation within rounding"
    assert found.asides == [
        "world_size: 1 in A, 2 in B",
        "every: 10 in A, 5 in B",
        "torch: 2.13.0+cpu in A, 2.9.0 in B",
        "threads: 1 in A, 8 in B",
        "device: cpu in A, cuda in B",
    ]
    # steps that the other had no reason to record are no difference
    recorded = [(step.step, step.end) for step in found.steps]
    assert recorded == [*((step, False) for step in (0, 1, 2, 10, 20)), (23, True)]
    assert (found.only_in_a, found.only_in_b) == ([], [])


def test_dropout_of_other_world_sizes_is_undecided(tmp_path: Path) -> None:
    """Its masks are of other shapes; of the same world size another seed is a fault."""

    def drop(own: Sequence[Tensors], rank: int, step: int) -> Tensors:
        torch.manual_seed(len(own))
        return {n: g * (torch.rand_like(g) > 0.1) for n, g in own[0].items()}

    plan = {"reduce": drop, "draws": True}
    a = record(tmp_path / "a", **plan)
    b = record(tmp_path / "b", world_size=2, **plan)
    twin = record(tmp_path / "twin", twin=True, **plan)
    for found in (compare_recordings(a, b), compare_recordings(a, b, twin)):
        assert found.verdict == "undecided"
        assert found.first
        assert "draws random numbers" in found.first.cause


def test_another_seed_of_dropout(tmp_path: Path) -> None:
    def drop(found: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(nn.functional.dropout(found, 0.2), targets)

    def seeded(seed: int) -> Callable[..., None]:
        return lambda step, models, optimizers: torch.manual_seed(seed + step)

    plan = {"loss": drop, "draws": True, "world_size": 2}
    a = record(tmp_path / "a", early=seeded(0), **plan)
    assert (
        verdict(a, record(tmp_path / "same", early=seeded(0), **plan)) == "equal bits"
    )
    b = record(tmp_path / "b", early=seeded(9), **plan)
    alter(b, 0, lambda row: row.update(random="1" * 16))
    alter(b, 1, lambda row: row.update(random="1" * 16))
    first = compare_recordings(a, b).first
    assert first
    assert (first.step, first.what) == (0, "own gradients")
    assert "the random numbers of ranks 0, 1 are others" in first.cause


def test_batch_norm_of_other_world_sizes(sound: Any) -> None:
    plan = {"model": Normalized}
    found = compare_recordings(sound(world_size=1, **plan), sound(world_size=2, **plan))
    assert found.verdict == "different"
    assert found.first
    assert "batch norm" in found.first.cause


def test_buffers_of_one_rank(sound: Any, tmp_path: Path) -> None:
    plan = {"world_size": 2, "model": Normalized}

    def spoil(step: int, models: Any, optimizers: Any) -> None:
        if step == 1:
            models[1].norm.running_mean += 1

    b = record(tmp_path / "b", after=spoil, **plan)
    found = compare_recordings(sound(**plan), b)
    assert found.first
    assert found.verdict == "different"
    assert (found.first.step, found.first.what) == (2, "buffers")
    assert (found.first.tensor, found.first.ranks) == ("norm.running_mean", "rank 1")
    assert "not broadcast" in found.first.cause
    assert any("buffers" in line for line in found.alarms["B"])


def test_recording_that_ends_early(sound: Any, tmp_path: Path) -> None:
    b = record(tmp_path / "b")
    rows = rows_of(b)
    write(b, rows[:-2])
    # and the kill came within a line
    with open(b / "rank-0.jsonl", "a") as file:
        file.write(json.dumps(rows[-2])[:50])
    found = compare_recordings(sound(world_size=1), b)
    assert (found.verdict, found.first) == ("undecided", None)
    assert found.broken == ["B ends early: nothing after step 10"]
    assert (found.only_in_a, found.only_in_b) == (["step 20"], [])
    assert {step.mark for step in found.steps} == {"="}


def test_shorter_run(sound: Any, tmp_path: Path) -> None:
    found = compare_recordings(sound(world_size=1), record(tmp_path / "b", steps=12))
    assert (found.verdict, found.first) == ("different", None)
    assert (found.only_in_a, found.broken) == (["step 20"], [])
    # one without a recorded step less
    found = compare_recordings(record(tmp_path / "c", steps=22), sound(world_size=1))
    assert (found.verdict, found.only_in_b) == (
        "different",
        ["2 steps after the first 22"],
    )


def test_missing_rank(sound: Any, tmp_path: Path) -> None:
    b = record(tmp_path / "b", world_size=2)
    (b / "rank-1.jsonl").unlink()
    found = compare_recordings(sound(world_size=2), b)
    assert (found.verdict, found.broken) == ("undecided", ["B lacks rank 1"])


def test_padding_is_no_sure_difference(sound: Any, tmp_path: Path) -> None:
    """Other bytes of inputs from which come the same gradients."""
    b = record(tmp_path / "b", world_size=2)
    for rank in range(2):
        alter(b, rank, lambda row: row.update(inputs=[["0" * 16] * (BATCH // 2)]))
    found = compare_recordings(sound(world_size=1), b)
    assert found.verdict == "undecided"
    assert found.first
    assert "the gradients agree" in found.first.cause


def test_refusals(sound: Any, tmp_path: Path) -> None:
    a, b = sound(world_size=1), record(tmp_path / "b")
    line = refusal(compare_recordings, a, b, b)
    assert line.endswith(f"b: is no twin; record {a} again with MINITRAIN_TWIN=1")
    other = record(tmp_path / "other", twin=True, world_size=2)
    assert "is no twin of" in refusal(compare_recordings, a, b, other)
    late = record(tmp_path / "late")
    write(late, [r for r in rows_of(late) if r.get("step") not in (0, 1, 2, 10, 20)])
    assert "no recorded step in common" in refusal(compare_recordings, a, late)
    write(b, [*rows_of(b)[:2], {"kind": "nonsense"}])
    assert "damaged" in refusal(compare_recordings, a, b)


def test_other_bits_of_the_same_numbers(sound: Any, tmp_path: Path) -> None:
    """As where only one of them has its zeros negative."""
    b = record(tmp_path / "b")
    alter(
        b, 0, lambda row: [x.update(hash="0" * 32) for x in row["parameters"].values()]
    )
    found = compare_recordings(sound(world_size=1), b)
    assert found.verdict == "same computation within rounding"
