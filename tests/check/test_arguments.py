"""What check_data_parallel is given: ordinary input works, the rest is one line."""

import ast
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from one_line import refusal
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import minitrain
from minitrain.check.data_parallel import check_data_parallel
from minitrain.core.errors import EvidenceError, RankError, UserError
from minitrain.data.cut import count_targets
from minitrain.ddp import unwrap
from minitrain.sync import Defaults

pytestmark = pytest.mark.slow

# else they depend on which tests were imported before
DRAWN = torch.Generator().manual_seed(0)
DATASET = TensorDataset(
    torch.randn(24, 3, generator=DRAWN), torch.randn(24, 1, generator=DRAWN)
)
PAIRS = [DATASET[8 * i : 8 * i + 8] for i in range(3)]


def line() -> nn.Module:
    return nn.Linear(3, 1)


def squares(model: nn.Module, batch: Any) -> Tensor:
    inputs, targets = batch[:2]
    return nn.functional.mse_loss(model(inputs), targets)


def check(**options: Any) -> Any:
    given = {"factory": line, "batches": PAIRS, "loss": squares, **options}
    return check_data_parallel(given.pop("factory"), given.pop("batches"), **given)


def refused(**options: Any) -> str:
    return refusal(check, **options)


def endless() -> Iterator[Any]:
    while True:
        yield torch.randn(8, 3), torch.randn(8, 1)


@pytest.mark.parametrize(
    ("batches", "steps"),
    [(DataLoader(DATASET, batch_size=8, shuffle=True), 5), (endless(), 3)],
    ids=["loader, more steps", "generator"],
)
def test_batches_may_be_any_iterable(batches: Any, steps: int | None) -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    assert check(batches=batches, steps=steps).verdict == "proven"
    assert torch.equal(torch.get_rng_state(), state)


def test_what_is_not_for_each_sample_is_handed_on() -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        *_, name, sizes, scale, weight, table = batch
        assert (len(name), len(sizes), len(table)) == (8, 3, 5)
        return squares(model, batch) * scale["by"] * float(weight)

    constants = ["eight...", [3, 224, 224], {"by": 2.0}, np.array(0.5), np.ones(5)]
    assert check(batches=of(*constants), loss=loss).verdict == "proven"


def of(*more: Any) -> list[Any]:
    return [(*pair, *more) for pair in PAIRS]


def vector(model: nn.Module, batch: Any) -> Tensor:
    return (model(batch[0]) - batch[1]).square()[:, 0]


def of_four(model: nn.Module, batch: Any) -> Tensor:
    if len(batch[0]) != 4:
        raise ValueError("of four")
    return squares(model, batch)


MODULE = line()


class WithLinear(nn.Module):
    """A layer, which each model below uses in a way of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)


class GivesDict(WithLinear):
    def forward(self, x: Tensor) -> Any:
        return {"loss": self.linear(x).square().mean()}


class Scaled(WithLinear):
    """With a parameter of no dimension, as CLIP has one."""

    def __init__(self) -> None:
        super().__init__()
        self.logit_scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.logit_scale


class Counts(WithLinear):
    """Computes something else in each pass."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.linear(x) * self.calls


def synchronized() -> nn.Module:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
    return nn.SyncBatchNorm.convert_sync_batchnorm(model)


GIVEN = "loss(model, batch)"
CUT = "which would not be cut; make it a tensor, or give it to the loss otherwise"
SYNCS = (
    "must be one of ddp, per_parameter, flat, reduce_scatter, fp16_compress, "
    "bf16_compress, powersgd, zero1, fsdp, invariant, shm, invariant_shm, "
    "one_copy, hierarchical, or package.module:Class"
)
AGAIN = "model: the same samples, seed and buffers give a loss of "
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"batches": []}, "batches: is empty, must hold a global batch or more"),
    ({"batches": 3}, "batches: TypeError: 'int' object is not iterable"),
    (
        {"batches": [*PAIRS, (torch.ones(2), torch.ones(3))]},
        "batches[3]: all tensors must have one length, found 2, 3",
    ),
    (
        {"batches": [{"x": torch.ones(8, 3), "text": ["a"] * 8}] * 3},
        f"batches[0]: holds a list of 8, {CUT}",
    ),
    ({"batches": of(([3] * 8, 1))}, f"batches[0]: holds a list of 8, {CUT}"),
    ({"batches": of(np.ones((8, 2)))}, f"batches[0]: holds a ndarray of 8, {CUT}"),
    ({"loss": vector}, f"{GIVEN} is of shape (4,); it must be one finite 0-dim"),
    (
        {"loss": lambda model, batch: squares(model, batch).detach()},
        f"model: none of its parameters can be trained by {GIVEN}, which has no grad",
    ),
    # one process computes a whole batch
    ({"loss": of_four}, f"{GIVEN}: ValueError: of four ("),
    ({"loss": "mse"}, "loss = 'mse': must be callable"),
    ({"loss": None}, "model: TypeError: "),
    (
        {"factory": GivesDict, "batches": [{"x": x} for x, _ in PAIRS], "loss": None},
        "model: the output has no .loss; it must hold the mean over real targets; "
        "without a loss of yours, model(**batch).loss is computed",
    ),
    # in a rank it reads the wrapper
    (
        {"factory": Scaled, "loss": lambda m, b: m(b[0]).sum() * m.logit_scale},
        f"{GIVEN}: AttributeError: 'Wrapped' object has no attribute 'logit_scale'",
    ),
    (
        {"factory": lambda: None},
        "factory: returned NoneType, must return a torch.nn.Module",
    ),
    ({"factory": MODULE}, "factory: is a Linear, must be a function that makes one"),
    ({"factory": lambda: MODULE}, "factory: returned the same weight twice, must make"),
    ({"factory": synchronized}, f"{GIVEN}: ValueError: SyncBatchNorm expected inpu"),
    ({"factory": Counts}, AGAIN),
    (
        {"factory": Scaled, "sync": "powersgd", "steps": 12},
        "model: logit_scale has no dimension, as PowerSGD needs",
    ),
    ({"sync": "powersdg"}, f"sync = 'powersdg': {SYNCS} (did you mean powersgd?)"),
    (
        {"sync": "flat", "tuning": Defaults(overlap=False)},
        "overlap = false: must be true with a sync that does not use DDP's",
    ),
    ({"sync": "fsdp", "precision": "fp16"}, "precision = 'fp16': must be float32 "),
    ({"optimizer": "lion"}, "optimizer = 'lion': must be 'adamw' or 'sgd'"),
    ({"world_size": "2"}, "world_size = '2': must be an integer"),
    ({"steps": 1}, "steps = 1: must be greater than or equal to 2"),
    ({"accept": "proven"}, "accept = 'proven': must be a valid tuple"),
    ({"accept": ["well"]}, "accept[0] = 'well': must be 'proven', 'proven in eval"),
    ({"count": 8}, "count = 8: must be callable"),
    ({"count": lambda batch: 3.5}, "count(batch) = 3.5: must be a whole number"),
    ({"count": lambda batch: 0}, "batches[0]: shard 0 of 2 has no target"),
    ({"count": lambda batch: batch["mask"]}, "count(batch): TypeError: tuple indices"),
]


@pytest.mark.parametrize(
    ("options", "expected"), REFUSED, ids=[found[:40] for _, found in REFUSED]
)
def test_what_cannot_be_is_one_line(options: dict[str, Any], expected: str) -> None:
    found = refused(**options)
    assert found.startswith(expected)
    # in the words of the call, and not in those of params.yaml or of our files
    assert "train." not in found.replace("minitrain.", "")
    assert "minitrain/" not in found


def test_a_rank_that_refuses_names_the_argument() -> None:
    found = refused(learning_rate=1e9, optimizer="sgd", steps=6)
    assert found.startswith("train: the loss is ")
    assert found.endswith("; a smaller learning_rate may keep it finite")


class Classifier(WithLinear):
    def forward(self, x: Tensor, labels: Tensor) -> Any:
        logits = torch.cat([self.linear(x), -self.linear(x)], 1)
        return SimpleNamespace(loss=nn.functional.cross_entropy(logits, labels))


def test_labels_of_one_dimension_are_not_shifted() -> None:
    labels = torch.tensor([0, 1, 1, -100, 0, 1, 0, 1])
    assert count_targets({"labels": labels}) == 7
    batches = [{"x": x, "labels": labels} for x, _ in PAIRS]
    assert check(factory=Classifier, batches=batches, loss=None).verdict == "proven"


def test_loss_that_unwraps_a_model_of_the_default_type_of_the_test() -> None:
    def scaled(model: nn.Module, batch: Any) -> Tensor:
        return squares(model, batch) * unwrap(model).logit_scale.detach()

    torch.set_default_dtype(torch.float64)
    try:
        batches = [(torch.randn(8, 3), torch.randn(8, 1)) for _ in range(3)]
        ladder = check(factory=Scaled, loss=scaled, batches=batches)
    finally:
        torch.set_default_dtype(torch.float32)
    assert ladder.verdict == "proven"
    assert ladder.rungs["one_process"].detail == "allowed: 1e-11"


def test_atol_is_the_callers() -> None:
    usual, wide = check(learning_rate=3e-4), check(learning_rate=3e-4, atol=1e-2)
    assert usual.rungs["one_process"].detail != wide.rungs["one_process"].detail
    assert "99.9 % of the elements 0.01" in wide.rungs["one_process"].detail


def test_count_that_does_not_add_up_is_a_breach() -> None:
    with pytest.raises(EvidenceError, match="breach: witness_data: step 0: rank 0 div"):
        check(count=lambda batch: 7)


def fails_in_a_rank(model: nn.Module, batch: Any) -> Tensor:
    if "RANK" in os.environ:
        raise ValueError("not here")
    return squares(model, batch)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"loss": vector}, UserError),
        ({"loss": fails_in_a_rank}, RankError),
        ({"sync": "fsdp"}, EvidenceError),
    ],
    ids=["loss", "rank that fails", "verdict"],
)
def test_page_of_pytest_has_the_call_and_the_message(
    options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error) as raised:
        check(**options)
    shown = [entry.path for entry in raised.traceback.filter(raised)]
    assert {*shown} == {Path(__file__)}
    assert raised.value.__suppress_context__ or raised.value.__context__ is None


def test_public_names_are_complete_and_typed() -> None:
    assert {*minitrain.__all__} <= {*dir(minitrain)}
    homes = {name: f"minitrain.{home}" for name, home in minitrain._HOMES.items()}
    # where a type checker looks for them
    tree = ast.parse(Path(minitrain.__file__).read_text())
    assert {
        name.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for name in node.names
        if f"{node.module}".startswith("minitrain.")
    } == homes
    assert sorted(homes) == minitrain.__all__
    for name, home in homes.items():
        assert getattr(minitrain, name) is getattr(importlib.import_module(home), name)
    assert (Path(minitrain.__file__).parent / "py.typed").is_file()
