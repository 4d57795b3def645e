import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from one_line import refusal
from samples_of_text import batch_of
from tiny import tiny_params
from torch import Tensor, nn

from minitrain.core.params import Model
from minitrain.model.factory import build_model, try_model
from minitrain.model.gpt import MiniGPT
from minitrain.proof.witness.corpus import build as build_again

VOCAB_SIZE = 256
BATCH = batch_of([[1, 2, 3, 4], [5, 6]], 4)


def section(file: Path | str = "nowhere.py", factory: str = "make") -> Model:
    return tiny_params().model.model_copy(
        update={"file": str(file), "factory": factory}
    )


def write(folder: Path, source: str) -> Path:
    path = folder / "my_model.py"
    path.write_text(source)
    return path


# with string annotations, dataclasses look up their module by name
WORKING = """
from __future__ import annotations
from dataclasses import dataclass
from torch import Tensor, nn

@dataclass
class Output:
    loss: Tensor

class Mine(nn.Embedding):
    def forward(self, input_ids, labels):
        return Output(super().forward(input_ids).square().mean())

def make(params, vocab_size):
    return Mine(vocab_size, params.n_embd)
"""


def test_model_file_with_a_dataclass(tmp_path: Path) -> None:
    model = build_model(section(write(tmp_path, WORKING)), VOCAB_SIZE)
    assert model.weight.shape == (VOCAB_SIZE, tiny_params().model.n_embd)
    try_model(model, BATCH)


def test_package_and_callable() -> None:
    # model.file is not used
    model = build_model(section(factory="minitrain.model.gpt:mini_gpt"), VOCAB_SIZE)
    assert type(model) is MiniGPT
    try_model(model, BATCH)


MAKE = "def make(params, vocab_size):\n"
# a model file, the start of the line, and text that it contains
REFUSED_FILES: dict[str, tuple[str, ...]] = {
    "name of something else": (
        "make = 3\n",
        "model.factory = 'make': {path} has no function 'make'",
    ),
    "import that is not there": (
        "\n\nimport nowhere_at_all\n",
        "model.file {path}: ModuleNotFoundError: No module named 'nowhere_at_all'",
        "{path}:3",
    ),
    "factory that raises several lines": (
        MAKE + "    raise ValueError('one\\ntwo')\n",
        "model.factory make: ValueError: one two",
        "{path}:2",
    ),
    "factory that ends the process": (
        MAKE + "    raise SystemExit('no GPU')\n",
        "model.factory make: SystemExit: no GPU",
    ),
    "factory that returns a list": (
        MAKE + "    return [params]\n",
        "model.factory make: returned list, must return a torch.nn.Module",
    ),
}


@pytest.mark.parametrize("name", REFUSED_FILES)
def test_model_file_that_is_refused(tmp_path: Path, name: str) -> None:
    source, line, *parts = REFUSED_FILES[name]
    path = write(tmp_path, source)
    told = refusal(build_model, section(path), VOCAB_SIZE)
    assert told.startswith(line.format(path=path))
    assert all(part.format(path=path) in told for part in parts)


def test_file_imports_its_neighbors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module, and in the factory a package."""
    sizes = tmp_path / "wide" / "sizes"
    sizes.mkdir(parents=True)
    (sizes / "__init__.py").write_text("from sizes.rows import ROWS\n")
    (sizes / "rows.py").write_text("ROWS = 5\n")
    layers = "from torch import nn\ndef layer(rows): return nn.Embedding(rows, 7)\n"
    (tmp_path / "wide" / "layers.py").write_text(layers)
    # like a folder that a tool left behind
    (tmp_path / "wide" / "hypothesis").mkdir()
    # relative to the working folder, as in params.yaml
    monkeypatch.chdir(tmp_path)
    path = Path("wide", "my_model.py")
    path.write_text(
        "import hypothesis\nfrom layers import layer\nassert hypothesis.given\n"
        "def make(params, vocab_size):\n    from sizes import ROWS\n"
        "    return layer(ROWS)\n"
    )
    paths, finders = [*sys.path], [*sys.meta_path]
    model = build_model(section(path), VOCAB_SIZE)
    witnessed = build_again({"file": str(path), "factory": "make"}, None)
    assert model.weight.shape == witnessed.weight.shape == (5, 7)
    # one that fails is named
    broken = path.with_name("broken.py").resolve()
    broken.write_text("\n\nwidth = 1 / 0\n")
    path.write_text(f"{MAKE}    import broken\n")
    line = refusal(build_model, section(path), VOCAB_SIZE)
    assert "ZeroDivisionError" in line
    assert f"{broken}:3" in line
    assert (sys.path, sys.meta_path) == (paths, finders)


def test_factory_that_is_not_there(tmp_path: Path) -> None:
    there, text = tmp_path / "model.py", tmp_path / "model.txt"
    there.write_text("def make_model(): ...\n_make_modem = None\n")
    text.write_text("x = 1")
    misspelt = section(there, "make_modem")
    for model, told in (
        (section(tmp_path / "modle.py"), f": no such file (did you mean {there}?)"),
        (misspelt, ": {0} has no function 'make_modem' (did you mean make_model?)"),
        (section(text), "model.txt: ImportError: must be a Python file"),
        (section(factory="nowhere_at_all:make"), ": nowhere_at_all: ModuleNotFoundEr"),
        (section(factory="torch.nn:Nothing"), ": torch.nn has no function"),
    ):
        assert told.format(there) in refusal(build_model, model, VOCAB_SIZE)


class Scripted(nn.Module):
    def __init__(self, output: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 3))
        self.output = output

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        return self.output(self.weight)


def having(loss: Any) -> SimpleNamespace:
    return SimpleNamespace(loss=loss)


def spare(layer: nn.Module) -> Scripted:
    """Return a model whose loss is the sum of one weight, with another layer."""
    model = Scripted(lambda w: having(w.sum()))
    model.spare = layer
    return model


def with_failing_backward(w: Tensor) -> SimpleNamespace:
    loss = w.sum()
    loss.register_hook(lambda gradient: gradient @ gradient)
    return having(loss)


def sparse() -> nn.Module:
    model = Scripted(lambda w: having(w.sum() + model.table(torch.tensor([0])).sum()))
    model.table = nn.Embedding(2, 1, sparse=True)
    return model


# a model or its output, and the start of the line
REFUSED: dict[str, tuple[Any, str]] = {
    "no loss": (
        lambda w: SimpleNamespace(logits=w),
        "model: the output has no .loss; it must hold the mean over real targets",
    ),
    "loss of None": (lambda w: having(None), "model: .loss is a NoneType; it must be"),
    "NaN": (lambda w: having(w.sum() * float("nan")), "model: .loss is tensor(nan"),
    "a loss for each token": (lambda w: having(w.repeat(50, 1)), "model: .loss is "),
    "attribute error of its own": (
        lambda w: having(w.nowhere),
        "model: AttributeError: 'Parameter' object has no attribute 'nowhere'",
    ),
    "backward that gives NaN": (
        lambda w: having((w - w).norm(2, dim=(0, 1)) + (w * 0).sqrt().sum()),
        "model: the gradient of weight must be dense and finite",
    ),
    "process ends": (lambda w: sys.exit("no GPU"), "model: SystemExit: no GPU"),
    "backward that fails": (with_failing_backward, "model: RuntimeError: both "),
    "without gradient": (
        spare(nn.Linear(2, 2)),
        "model: parameter spare.weight (2 in all) gets no gradient; use it in the loss",
    ),
    "sparse": (
        sparse(),
        "model: the gradient of table.weight must be dense and finite",
    ),
    "lazy": (nn.LazyLinear(1), "model: weight in its state must be a tensor "),
    "all frozen": (
        Scripted(lambda w: having(w.sum())).requires_grad_(False),
        "model: none of its parameters can be trained by its .loss",
    ),
}


@pytest.mark.parametrize(("given", "line"), REFUSED.values(), ids=REFUSED.keys())
def test_model_that_is_refused(given: Any, line: str) -> None:
    model = given if isinstance(given, nn.Module) else Scripted(given)
    assert refusal(try_model, model, BATCH).startswith(line)


@pytest.mark.parametrize(
    "model",
    [
        spare(nn.Linear(2, 2).requires_grad_(False)),
        Scripted(lambda w: having((w * 0).sum())),
    ],
    ids=["frozen", "gradient of zero"],
)
def test_model_that_is_fine(model: nn.Module) -> None:
    try_model(model, BATCH)


def test_place_of_an_error_is_in_no_library_but_in_the_default_model() -> None:
    line = refusal(try_model, nn.Linear(2, 2), BATCH)
    assert line.startswith("model: TypeError: ")
    assert ".py:" not in line
    # which is meant to be edited
    model = build_model(tiny_params().model, 2)
    assert "minitrain/model/gpt.py:" in refusal(try_model, model, BATCH)
