"""Two recorded loops, one of them with a fault that ``verify`` names; right pairs."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from recorded_loops import steps
from torch import Tensor, nn
from torch.distributed.nn.functional import all_gather
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer

import minitrain
from minitrain.comm.groups import distributed
from minitrain.compare.recordings import SAME, compare_recordings
from minitrain.recording.format import read_recording

STEPS, BATCH, LENGTH, WORDS = 4, 12, 6, 9
# a loop of a rank among so many, recorded in a folder
Loop = Callable[[Path, int, int], None]


class Reader(nn.Module):
    """Predicts words; the loss is computed by the loop, or in the model."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed, self.mix = nn.Embedding(WORDS, 8), nn.Linear(8, 8)
        self.out = nn.Linear(8, WORDS, bias=False)

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> Tensor:
        found = self.out(self.mix(self.embed(ids)).tanh())
        return found if labels is None else total(found, labels) / BATCH / LENGTH


def total(found: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(found.flatten(0, 1), labels.flatten(), reduction="sum")


def words(step: int) -> tuple[Tensor, Tensor]:
    """The batch of all ranks, with unlike numbers of targets in its rows."""
    made = torch.Generator().manual_seed(50 + step)
    ids = torch.randint(WORDS, (BATCH, LENGTH), generator=made)
    lengths = torch.randint(1, LENGTH, (BATCH, 1), generator=made)
    return ids, torch.where(torch.arange(LENGTH) < lengths, (ids + 1) % WORDS, -100)


def wrapped(model: nn.Module, world_size: int) -> Any:
    return DistributedDataParallel(model) if world_size > 1 else model


def normal(seed: int, count: int) -> Tensor:
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))


def accumulated(
    folder: Path,
    rank: int,
    world_size: int,
    *,
    divide: str,
    passes: int,
    sync: bool,
    clip: float = 0.0,
) -> None:
    """Divides by the targets of the whole ``batch``, of this ``rank``, or of the
    ``pass``: then the mean of the passes, or ranks, is none of all targets.
    """
    model = wrapped(Reader(), world_size)
    optimizer = SGD(model.parameters(), lr=0.3)
    for step in steps(folder, model, optimizer, STEPS):
        ids, labels = words(step)
        mine = slice(rank, None, world_size)
        for number, part in enumerate(torch.arange(BATCH)[mine].chunk(passes)):
            counts = {
                "batch": (labels != -100).sum() / world_size,
                "rank": (labels[mine] != -100).sum(),
                "pass": (labels[part] != -100).sum() * passes,
            }
            waits = world_size > 1 and not sync and number < passes - 1
            with model.no_sync() if waits else nullcontext():
                loss = total(model(ids[part]), labels[part]) / counts[divide]
                loss.backward()
            # noise of the loop, which is none of the model
            torch.rand(())
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)


def divided(
    folder: Path, rank: int, world_size: int, *, is_divided: bool, loses: bool
) -> None:
    """Train with AdamW, optionally with sharded state; rank 1 ``loses`` some."""
    model = wrapped(Reader(), world_size)
    optimizer: Optimizer = AdamW(model.parameters(), lr=0.01)
    if is_divided:
        # importing it warns
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(model.parameters(), AdamW, lr=0.01)
    for step in steps(folder, model, optimizer, STEPS):
        ids, labels = (one[rank::world_size] for one in words(step))
        model(ids, labels).backward()
        if loses and rank == 1 and step == STEPS - 1:
            keeps = optimizer.optim if is_divided else optimizer
            for state in keeps.state.values():
                state["max_exp_avg_sq"] = torch.ones(1)


def contrastive(folder: Path, rank: int, world_size: int, *, gathers: str) -> None:
    """Train on pairs of views, contrasted within a rank or with those of all ranks
    (``with`` or ``without`` their gradients).
    """
    torch.manual_seed(4)
    model = wrapped(nn.Linear(6, 5), world_size)
    optimizer = SGD(model.parameters(), lr=0.1)
    for step in steps(folder, model, optimizer, STEPS):
        x = normal(70 + step, 2 * BATCH)[rank::world_size]
        mine, others = normalize(model(x), dim=1).chunk(2)
        right = torch.arange(len(mine))
        if gathers != "no":
            right += rank * len(mine)
            gather = all_gather if gathers == "with" else without_gradients
            others = torch.cat([*gather(others)])
        cross_entropy(4 * mine @ others.T, right).backward()


def without_gradients(view: Tensor) -> list[Tensor]:
    """Gather views; only the rank's own keep their gradient."""
    found = [torch.empty_like(view) for _ in range(dist.get_world_size())]
    dist.all_gather(found, view.detach().contiguous())
    found[dist.get_rank()] = view
    return found


def reading(folder: Path, rank: int, world_size: int, *, fault: str) -> None:
    """Train a model that computes its loss, optionally with a fault in its setup."""
    inner = Reader()
    if fault != "never tied":
        inner.out.weight = inner.embed.weight
    if fault == "late":
        inner.mix.requires_grad_(False)
    model = wrapped(inner, world_size)
    if fault == "untied":
        inner.out.weight = nn.Parameter(inner.embed.weight.detach().clone())
    eps = 1e-6 if fault == "eps" and rank == world_size - 1 else 1e-8
    optimizer = AdamW(inner.parameters(), lr=0.01, eps=eps)
    every = 3 if fault == "late" else 1
    num_steps = 7 if fault == "late" else STEPS
    for step in steps(folder, model, optimizer, num_steps, every=every):
        if step == 4 and fault == "late":
            inner.mix.requires_grad_(True)
        ids, labels = (one[rank::world_size] for one in words(step))
        if fault == "labels":
            labels = torch.where(labels == -100, -100, (labels + 1) % WORDS)
        (world_size * model(ids, labels)).backward()


def some_parts(folder: Path, rank: int, world_size: int, *, lack: bool) -> None:
    """Only rank 0 uses all layers; gradients are reduced explicitly."""
    torch.manual_seed(5)
    model = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
    model.forward = lambda x, parts: sum(model[n](x) for n in parts)  # type: ignore
    optimizer = SGD(model.parameters(), lr=0.1)
    for step in steps(folder, model, optimizer, STEPS):
        x = normal(90 + step, BATCH)[rank::world_size]
        parts = [0] if lack and rank else [0, 1]
        model(x, parts).square().mean().backward()
        for parameter in model.parameters():
            gradient = parameter.grad
            shared = torch.zeros_like(parameter) if gradient is None else gradient
            dist.all_reduce(shared)
            shared /= world_size


by = partial(accumulated, passes=2, sync=False)
# by name: the world size and the loop
LOOPS: dict[str, tuple[int, Loop]] = {
    "whole": (1, partial(by, divide="batch", passes=1)),
    "passes": (1, partial(by, divide="batch")),
    "window of one": (1, partial(by, divide="rank")),
    "means of passes": (1, partial(by, divide="pass")),
    "ranks": (2, partial(by, divide="batch")),
    "ranks, synced": (2, partial(by, divide="batch", sync=True)),
    "window": (2, partial(by, divide="rank", sync=True)),
    "means": (2, partial(by, divide="pass")),
    "means, synced": (2, partial(by, divide="pass", sync=True)),
    "whole, clipped": (1, partial(by, divide="batch", passes=1, clip=0.1)),
    "ranks, clipped": (2, partial(by, divide="batch", clip=0.1)),
    "window, clipped": (2, partial(by, divide="rank", sync=True, clip=0.1)),
    "means, clipped": (2, partial(by, divide="pass", clip=0.1)),
    "adamw": (2, partial(divided, is_divided=False, loses=False)),
    "zero": (2, partial(divided, is_divided=True, loses=False)),
    "zero, state lost": (2, partial(divided, is_divided=True, loses=True)),
}
for fault in ("", "labels", "eps", "untied", "late", "never tied"):
    LOOPS[f"two {fault}"] = 2, partial(reading, fault=fault)
    LOOPS[f"one {fault}"] = 1, partial(reading, fault=fault)
for gathers in ("no", "with", "without"):
    LOOPS[f"pairs, {gathers}"] = 2, partial(contrastive, gathers=gathers)
LOOPS["pairs"] = 1, partial(contrastive, gathers="no")
for lack in (True, False):
    LOOPS[f"lacks {lack}"] = 2, partial(some_parts, lack=lack)
NEGATIVES = "the loss is not a mean over samples: ranks see fewer negatives"
LABELS = "the labels are others, and the inputs the same"
PASSES, RANKS = "mean of micro-batch means", "a mean of means: each rank"
# A, B, what of them is unlike first, and the cause
FAULTS = [
    ("window of one", "window", "gradients", f"B: {RANKS}"),
    ("window", "window of one", "gradients", f"A: {RANKS}"),
    ("whole", "means of passes", "gradients", f"B: a {PASSES}"),
    ("ranks", "means", "gradients", f"B: a {PASSES}"),
    ("whole", "means, synced", "gradients", f"B: a {PASSES}"),
    ("whole, clipped", "window, clipped", "gradients", f"B: {RANKS}"),
    ("means, clipped", "whole, clipped", "gradients", f"A: a {PASSES}"),
    ("pairs", "pairs, no", "gradients", NEGATIVES),
    ("pairs", "pairs, without", "gradients", NEGATIVES),
    ("one ", "one labels", "data", LABELS),
    ("one ", "two labels", "data", LABELS),
    ("two ", "two labels", "data", LABELS),
    ("lacks False", "lacks True", "gradients", "has no gradient in B on rank 1"),
]
RIGHT = [
    ("whole", "passes"),
    ("whole", "window of one"),
    ("passes", "ranks"),
    ("whole", "ranks, synced"),
    ("whole, clipped", "ranks, clipped"),
    ("adamw", "zero"),
    ("pairs", "pairs, with"),
    ("one ", "two "),
]


def run_all(folder: Path) -> None:
    with distributed() as (rank, _):
        for name, (world_size, loop) in LOOPS.items():
            if world_size > 1:
                loop(folder / name, rank, world_size)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pairs")
    for name, (world_size, loop) in LOOPS.items():
        if world_size == 1:
            loop(made / name, 0, 1)
    minitrain.launch(run_all, 2, made)
    return made


@pytest.mark.parametrize(("a", "b", "what", "cause"), FAULTS)
def test_a_fault_is_named(folder: Path, a: str, b: str, what: str, cause: str) -> None:
    found = compare_recordings(folder / a, folder / b)
    assert (found.verdict, found.doubt) == ("different", None)
    assert found.first
    assert (found.first.step, found.first.what) == (0, what), found.first
    assert cause in found.first.cause


@pytest.mark.parametrize(("a", "b"), RIGHT)
def test_right_runs_are_the_same(folder: Path, a: str, b: str) -> None:
    found = compare_recordings(folder / a, folder / b)
    assert found.verdict in SAME, found.first
    assert not any("draw the same" in line for line in found.alarms["B"])


def test_state_that_ranks_divide_is_compared_part_by_part(folder: Path) -> None:
    found = compare_recordings(folder / "adamw", folder / "zero")
    assert found.verdict == "equal bits"
    for pair in (("adamw", "zero, state lost"), ("zero, state lost", "adamw")):
        found = compare_recordings(*(folder / one for one in pair))
        assert found.verdict == "different"
        assert found.first
        assert (found.first.step, found.first.ranks) == (STEPS - 1, (1,))
        assert found.first.what == "optimizer state"
        assert "not restored?" in found.first.cause


@pytest.mark.parametrize(
    ("name", "step", "cause"),
    [
        ("two untied", 0, "replaced or trainable only after"),
        ("two late", 6, "trainable only after DistributedDataParallel was built"),
        ("lacks True", 0, "only some ranks use"),
    ],
)
def test_an_alarm_names_what_the_wrapper_does_not_know(
    folder: Path, name: str, step: int, cause: str
) -> None:
    found = read_recording(folder / name).ranks[0].alarms
    first = next(row for row in found if row["kind"] == "alarm")
    assert (first["rule"], first["step"]) == ("gradients", step)
    assert cause in first["line"]
    for right in ("two ", "two never tied", "lacks False"):
        rows = read_recording(folder / right).ranks[0].alarms
        assert not [row for row in rows if row["kind"] == "alarm"], rows


def test_a_broken_tie_names_the_pair(folder: Path) -> None:
    for a, b in (("one ", "two untied"), ("two ", "two never tied")):
        first = compare_recordings(folder / a, folder / b).first
        assert first
        assert (first.what, first.tensor) == ("model", "out.weight")
        assert first.cause == "out.weight is tied to embed.weight in A alone"


def test_a_setting_names_the_rank_that_has_it(folder: Path) -> None:
    for a, of in (("two ", ""), ("one ", "B")):
        first = compare_recordings(folder / a, folder / "two eps").first
        assert first
        assert (first.what, first.ranks, first.of) == ("optimizer settings", (1,), of)
        assert first.much == "eps = 1e-08 against 1e-06"
