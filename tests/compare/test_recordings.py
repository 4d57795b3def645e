"""Two recordings: the same computation, or the step, tensor, ranks and cause."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from one_line import refusal
from recorded import (
    BATCH,
    BIAS,
    Normalized,
    Tensors,
    adamw,
    alter,
    bias,
    dealt,
    mean,
    record,
    reduced,
    rows_of,
    sgd,
    write,
)
from torch import Tensor, nn
from torch.optim import AdamW

from minitrain.compare.align import same_samples
from minitrain.compare.difference import Cause, What
from minitrain.compare.recordings import compare_recordings
from minitrain.recording.inputs import sample_digests

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Sound recordings, each made once."""
    folder = tmp_path_factory.mktemp("sound")

    def get(**changes: Any) -> Path:
        path = folder / "-".join(f"{k}={v}" for k, v in changes.items() if k != "model")
        path = path / changes.get("model", nn.Module).__name__
        return path if path.exists() else record(path, **changes)

    return get


ONE, TWO, ALIKE = ((1, 2),), ((2, 2),), ((1, 1), (2, 2))
BOTH, ALL = (*ONE, *TWO), ((1, 1), *ONE, *TWO)


@dataclass(frozen=True)
class Fault:
    """What is planted in B, and what must be said of it; ``sizes`` are the world sizes
    of A and B. ``sure`` says that no twin is needed, ``twin_tells`` that one
    would tell.
    """

    name: str
    what: str
    cause: Cause
    step: int
    changes: dict[str, Any]
    sizes: tuple[tuple[int, int], ...] = BOTH
    tensor: str = ""
    ranks: tuple[int, ...] = ()
    of: str = ""
    sure: bool = True
    twin_tells: bool = True
    # what A, its twin and B have
    both: dict[str, Any] = field(default_factory=dict)


def planted(name: str, what: str, cause: Cause, step: int = 0, /, **more: Any) -> Fault:
    of_fault = {key: more.pop(key) for key in {*more} & {*Fault.__annotations__}}
    return Fault(name, what, cause, step, more, **of_fault)


def scaled(by: Callable[[int], float]) -> Callable[..., Tensors]:
    """The mean, times a function of the number of ranks."""
    return lambda own, *at: {n: g * by(len(own)) for n, g in mean(own, *at).items()}


def lost(own: Sequence[Tensors], rank: int, step: int) -> Tensors:
    """From step 3 on rank 1's gradient does not come: seen at step 10."""
    if step < 3:
        return mean(own, rank, step)
    return {name: gradient / len(own) for name, gradient in own[0].items()}


def alone(own: Sequence[Tensors], rank: int, step: int) -> Tensors:
    return own[1] if rank == 1 else mean(own, rank, step)


def rounded(own: Sequence[Tensors], rank: int, step: int) -> Tensors:
    """A little off, and apart by rounding on ranks."""
    torch.manual_seed(step)
    return {
        n: g * (1 + 1e-4 * torch.randn_like(g)) * (1 + 2e-7 * rank)
        for n, g in mean(own, rank, step).items()
    }


def low_precision(own: Sequence[Tensors], rank: int, step: int) -> Tensors:
    return mean(
        [{n: g.bfloat16().float() for n, g in one.items()} for one in own], 0, 0
    )


def same_for_all(step: int, world_size: int, order: Tensor) -> list[Tensor]:
    return [dealt(step, world_size, order)[0]] * world_size


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


def spoil(step: int, models: Any, optimizers: Any) -> None:
    if step == 1:
        models[1].norm.running_mean += 1


def drop(own: Sequence[Tensors], rank: int, step: int) -> Tensors:
    """Masks of other shapes with another number of ranks."""
    torch.manual_seed(len(own))
    return {n: g * (torch.rand_like(g) > 0.1) for n, g in own[0].items()}


def with_options(**options: Any) -> Callable[..., Any]:
    return lambda parameters, lr: AdamW(parameters, lr=lr, **options)


summed, divided_twice = scaled(lambda size: size), scaled(lambda size: 1 / size)
halved = bias(lambda g, *_: 0.5 * g)
absent = bias(lambda *_: None)
not_finite = bias(lambda g, own, rank, step: g * torch.nan**step)
clipped = reduced(lambda g: 0.37 * g)
# seen at step 10, by the effect
signs = reduced(torch.sign, *range(3, 9))
# far beyond what a twin, which is another start, shows of rounding on any machine
betas = with_options(weight_decay=0.1, betas=(0.5, 0.95))


def flipped(step: int, world_size: int, order: Tensor) -> list[Tensor]:
    return dealt(step, world_size, order.flip(0))


def again(step: int, world_size: int, order: Tensor) -> list[Tensor]:
    return dealt(min(step, 1), world_size, order)


def raised(step: int) -> float:
    return 0.001 * (1.1 if step >= 5 else 1)


GRADIENTS, PARAMETERS, DATA, RATE = "gradients", "parameters", "data", "learning rate"
SAME = "same computation within rounding"
RANK_1: dict[str, Any] = {"ranks": (1,), "sizes": TWO}
OF_B: dict[str, Any] = {"ranks": (1,), "sizes": ONE, "of": "B"}
APART: dict[str, Any] = {"sizes": TWO, "sure": False}
NO_TWIN: dict[str, Any] = {"sure": False, "twin_tells": False}
MEAN: dict[str, Any] = {"tensor": "norm.running_mean", "both": {"model": Normalized}}
# the start of a twin is no other one in bfloat16
IN_16 = {"sizes": ((1, 2), (2, 4)), "both": {"autocast": True, "steps": 12}, **NO_TWIN}
DROPS = {"sizes": ONE, "both": {"reduce": drop, "draws": True}, **NO_TWIN}
NOT_SENT = Cause.BUFFERS_NOT_BROADCAST
FAULTS = [
    planted("sum", GRADIENTS, Cause.SUMMED, reduce=summed),
    planted("own unseen", GRADIENTS, Cause.SUMMED, reduce=summed, with_own=False),
    planted("divided twice", GRADIENTS, Cause.AVERAGED_TWICE, reduce=divided_twice),
    planted("lost", GRADIENTS, Cause.MISSING, 10, reduce=lost),
    planted("alone", GRADIENTS, Cause.KEEPS_OWN, reduce=alone, **RANK_1),
    planted("alone, of one", GRADIENTS, Cause.KEEPS_OWN, reduce=alone, **OF_B),
    planted("low precision", GRADIENTS, Cause.REDUCED, reduce=low_precision),
    planted("cast", GRADIENTS, Cause.REDUCED, reduce=low_precision, sizes=((1, 1),)),
    planted("means", GRADIENTS, Cause.MEANS, deal=unlike_shares, sizes=ONE),
    planted("halved", GRADIENTS, Cause.FEW, tensor=BIAS, reduce=halved),
    planted("rounded", GRADIENTS, Cause.PUT_TOGETHER, reduce=rounded, **APART),
    planted("absent", GRADIENTS, Cause.NO_GRADIENT, tensor=BIAS, reduce=absent),
    planted("NaN", GRADIENTS, Cause.NOT_FINITE, 1, reduce=not_finite),
    planted("clipped", GRADIENTS, Cause.SCALED, reduce=clipped),
    planted("scaled loss", What.OWN, Cause.OWN_SCALED, loss=doubled, sizes=TWO),
    planted("another loss", What.OWN, Cause.PASS, loss=smooth, sizes=ALIKE),
    planted("loss, of one", GRADIENTS, Cause.NOT_A_MEAN, loss=smooth, sizes=ONE),
    planted("16 bits", GRADIENTS, Cause.LOWER, autocast=True, sizes=ONE, **NO_TWIN),
    planted("all in 16 bits", GRADIENTS, Cause.LOWER, **IN_16),
    planted("dropout", GRADIENTS, Cause.DRAWN, **DROPS),
    planted("batch norm", GRADIENTS, Cause.BATCH_NORM, sizes=ONE, both=MEAN["both"]),
    planted("buffers", What.BUFFERS, NOT_SENT, 2, after=spoil, **RANK_1, **MEAN),
    planted("no sampler", DATA, Cause.NO_SAMPLER, deal=same_for_all, sizes=ONE),
    planted("for a while", GRADIENTS, Cause.BETWEEN, 10, reduce=signs),
    planted("order", DATA, Cause.ORDER, deal=flipped),
    planted("one other", DATA, Cause.SAMPLES, 10, deal=one_other, sizes=ONE),
    planted("of rank 1", DATA, Cause.SAMPLES, 10, deal=one_other, **RANK_1),
    planted("batch again", DATA, Cause.BATCH_AGAIN, 2, deal=again),
    planted("short batch", DATA, Cause.BATCH_SIZE, deal=short, sizes=ONE),
    planted("rate", RATE, Cause.RATE_DIVIDED, lr=lambda step: 0.0005),
    planted("schedule", RATE, Cause.SCHEDULE, 10, lr=raised),
    planted("left out", PARAMETERS, Cause.STANDS, begin=leave_out, tensor="out.bias"),
    planted("moments lost", PARAMETERS, Cause.OPTIMIZER, 1, after=forget, sizes=ALL),
    planted("betas", PARAMETERS, Cause.OPTIMIZER, 1, optimizer=betas, sure=False),
    planted("seed", What.START, Cause.SEED, -1, seed=1),
]


@pytest.mark.parametrize("fault", FAULTS, ids=attrgetter("name"))
def test_planted(fault: Fault, sound: Callable[..., Path], tmp_path: Path) -> None:
    for number, (of_a, of_b) in enumerate(fault.sizes):
        a = sound(world_size=of_a, **fault.both)
        b = record(
            tmp_path / str(number), world_size=of_b, **fault.both | fault.changes
        )
        twin = sound(world_size=of_a, twin=True, **fault.both)
        for found in (compare_recordings(a, b), compare_recordings(a, b, twin)):
            sure = fault.sure or (found.twin and fault.twin_tells)
            assert found.verdict == ("different" if sure else "undecided")
            first = found.first
            assert (first.step, first.what) == (fault.step, fault.what)
            assert first.why.cause == fault.cause
            assert first.cause in str(first)
            assert first.tensor == fault.tensor or not fault.tensor
            assert (first.ranks, first.of) == (fault.ranks, fault.of)
            marks = {s.step: s.mark for s in found.steps}
            if fault.step in marks and fault.step:
                before = [mark for step, mark in marks.items() if step < fault.step]
                assert {*before} <= {"=", "~"}
        # which of the two is the right one cannot be told from this alone
        assert not compare_recordings(b, a).same


@pytest.mark.parametrize("optimizer", [adamw, sgd])
def test_sound_ones_are_never_called_different(optimizer: Any, tmp_path: Path) -> None:
    """Of one, two and four ranks, without a twin and with one."""
    for seed in range(4):
        plan = {"seed": seed, "optimizer": optimizer, "steps": 12, "every": 5}
        a = record(tmp_path / f"{seed}-1", **plan)
        twin = record(tmp_path / f"{seed}-twin", twin=True, **plan)
        size = 4 if seed % 2 else 2
        b = record(tmp_path / f"{seed}-{size}", world_size=size, **plan)
        for pair in ((a, b), (a, b, twin)):
            assert verdict(*pair) == SAME, (seed, pair)
        # A twin is another start: where a gradient is nothing but rounding (the bias of
        # a key), AdamW makes a whole step of it, in another direction.
        for pair in ((b, twin), (a, twin)):
            assert verdict(*pair) in (SAME, "undecided"), (seed, pair)


def verdict(a: Path, b: Path, twin: Path | None = None) -> str:
    return compare_recordings(a, b, twin).verdict


def test_samples_dealt_to_other_ranks_are_the_same_data(
    sound: Any, tmp_path: Path
) -> None:
    b = record(tmp_path / "b", world_size=2, deal=lambda *at: dealt(*at)[::-1])
    # a sum of two has no order
    assert verdict(sound(world_size=2), b) == "equal bits"
    assert verdict(sound(world_size=1), b) == SAME


def test_other_versions_and_machines_are_said(sound: Any, tmp_path: Path) -> None:
    header = {"torch": "2.9.0", "threads": 8, "device": "cuda"}
    b = record(tmp_path / "b", world_size=2, every=5, header=header, steps=28)
    found = compare_recordings(sound(world_size=1, steps=28), b)
    assert found.verdict == SAME
    assert found.asides == [
        "world_size: 1 in A, 2 in B",
        "every: 10 in A, 5 in B",
        "torch: 2.13.0+cpu in A, 2.9.0 in B",
        "threads: 1 in A, 8 in B",
        "device: cpu in A, cuda in B",
    ]
    # steps that the other had no reason to record are no difference: B has one of 25
    recorded = [(step.step, step.end) for step in found.steps]
    assert recorded == [*((step, False) for step in (0, 1, 2, 10, 20)), (27, True)]
    assert (found.only_in_a, found.only_in_b) == ([], [])


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


def test_steps_of_a_second_optimizer_have_its_number(
    sound: Any, tmp_path: Path
) -> None:
    a = record(tmp_path / "a")
    *rows, end = rows_of(a)
    second = [row | {"optimizer": 1} for row in rows if row.get("step", 9) < 2]
    write(a, [*rows, *second, end | {"steps": end["steps"] | {"1": 2}}])
    found = compare_recordings(a, sound(world_size=1))
    assert found.verdict == "different"
    assert found.only_in_a == ["step 0 of optimizer 1", "step 1 of optimizer 1"]
    c = record(tmp_path / "c")
    write(c, [*rows, *second, end | {"steps": end["steps"] | {"1": 9}}])
    assert compare_recordings(c, a).only_in_a == [
        "7 steps after the first 2 of optimizer 1"
    ]


def test_missing_rank(sound: Any, tmp_path: Path) -> None:
    b = record(tmp_path / "b", world_size=2)
    a, other = sound(world_size=2), tmp_path / "other host"
    other.mkdir()
    shutil.move(b / "rank-1.jsonl", other)
    found = compare_recordings(a, b)
    what = "copy rank-1.jsonl and times-1.csv from another host into"
    lacks = f"B lacks rank 1: {what} {b}"
    assert (found.verdict, found.broken) == ("undecided", [lacks])
    shutil.copytree(other, b, dirs_exist_ok=True)
    found = compare_recordings(a, b)
    assert (found.verdict, found.broken) == ("equal bits", [])


def test_refusals(sound: Any, tmp_path: Path) -> None:
    a = sound(world_size=1)
    other = record(tmp_path / "other", twin=True, world_size=2)
    line = refusal(compare_recordings, a, other, other)
    assert "world_size 2, not 1; must be the same run" in line
    late = record(tmp_path / "late")
    write(late, [r for r in rows_of(late) if r.get("step") not in (0, 1, 2, 10, 20)])
    assert "no recorded step in common" in refusal(compare_recordings, a, late)


# padded rows, whose samples have other hashes


def rows_read(*rows: list[int], labels: bool = False) -> dict[int, dict[str, Any]]:
    """As the recorder writes rows of token ids, with 9 as the padding."""
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[9] * (longest - len(row))] for row in rows])
    more = [torch.where(ids == 9, -100, ids)] if labels else []
    digests, _, unpadded = sample_digests([ids, *more])
    return {0: {"inputs": [digests], "unpadded": [unpadded]}}


@pytest.mark.parametrize("labels", [False, True])
def test_rows_are_the_same_with_any_padding(labels: bool) -> None:
    short, middle, long = [1, 2], [3, 4, 4, 5], [6, 7, 8, 1, 2, 3, 3]
    whole = rows_read(short, middle, long, labels=labels)
    for parts in (([short, middle], [long]), ([short], [middle, long])):
        dealt = {n: rows_read(*p, labels=labels)[0] for n, p in enumerate(parts)}
        assert same_samples(whole, dealt)
        assert not same_samples(whole, {0: dealt[0]})
    for other in ([3, 4, 4, 6], [3, 4, 4], [3, 5, 4, 5]):
        assert not same_samples(whole, rows_read(short, other, long, labels=labels))


def test_a_pattern_in_the_gradients_comes_before_the_data(tmp_path: Path) -> None:
    """Rows that hash otherwise are no other data where gradients are twice as large;
    where no combination of gradients explains them they are.
    """

    pad = {"inputs": [["0" * 16] * (BATCH // 2)]}
    a = record(tmp_path / "a", steps=3, world_size=2)
    for name, loss, what in (("b", doubled, "gradients"), ("c", smooth, "data")):
        b = record(tmp_path / name, steps=3, world_size=2, loss=loss)
        for rank in (0, 1):
            alter(b, rank, lambda row: row.update(pad))
        first = compare_recordings(a, b).first
        assert first.sure
        assert first.what in (what, f"own {what}")
