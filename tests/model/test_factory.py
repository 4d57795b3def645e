"""The user's own model: loaded and tried, or rejected with one line."""

import py_compile
import sys
import textwrap
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
from minitrain.model.factory import build_model, make_model, try_model
from minitrain.model.gpt import MiniGPT
from minitrain.proof.witness.corpus import build as build_again

VOCAB_SIZE = 256
BATCH = batch_of([[1, 2, 3, 4], [5, 6]], 4)


def section(file: Path | str = "nowhere.py", factory: str = "make") -> Model:
    """Return the ``model`` section that names this file and factory."""
    return tiny_params().model.model_copy(
        update={"file": str(file), "factory": factory}
    )


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """Write a model file."""

    def write_file(source: str) -> Path:
        path = tmp_path / "my_model.py"
        path.write_text(textwrap.dedent(source))
        return path

    return write_file


Write = Callable[[str], Path]

# with string annotations, dataclasses look up their module by name
WORKING = """
    from __future__ import annotations

    from dataclasses import dataclass
    from torch import Tensor, nn

    @dataclass
    class Output:
        loss: Tensor

    class Mine(nn.Module):
        def __init__(self, vocab_size, width):
            super().__init__()
            self.table = nn.Embedding(vocab_size, width)

        def forward(self, input_ids, labels):
            return Output(self.table(input_ids).square().mean())

    def make(params, vocab_size):
        return Mine(vocab_size, params.n_embd)
"""


def test_model_file_with_a_dataclass(write: Write) -> None:
    model = build_model(section(write(WORKING)), VOCAB_SIZE)
    assert model.table.weight.shape == (VOCAB_SIZE, tiny_params().model.n_embd)
    try_model(model, BATCH)


def test_package_and_callable() -> None:
    # model.file is not used
    model = build_model(section(factory="minitrain.model.gpt:mini_gpt"), VOCAB_SIZE)
    assert type(model) is MiniGPT
    try_model(model, BATCH)


LACKS_MAKE = "model.factory = 'make': {path} has no function 'make'"
NO_MODULE = "must return a torch.nn.Module"
MAKE = "def make(params, vocab_size):\n"
# a model file, the start of the line, and text that it contains
REFUSED_FILES: dict[str, tuple[str, ...]] = {
    "name that is not there": ("x = 1\n", LACKS_MAKE),
    "name of something else": ("make = 3\n", LACKS_MAKE),
    "syntax error": (
        "def make(:\n    pass\n",
        "model.file {path}: SyntaxError: ",
        "line 1",
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
    "factory that returns a list": (
        MAKE + "    return [params]\n",
        f"model.factory make: returned list, {NO_MODULE}",
    ),
}


@pytest.mark.parametrize("name", REFUSED_FILES)
def test_model_file_that_is_refused(write: Write, name: str) -> None:
    source, line, *parts = REFUSED_FILES[name]
    path = write(source)
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
    assert (sys.path, sys.meta_path) == (paths, finders)


@pytest.mark.parametrize("lazy", [False, True])
def test_neighbor_that_fails(write: Write, lazy: bool) -> None:
    body = "def make(params, vocab_size):\n    import broken\n"
    path = write(body if lazy else "import broken\n")
    broken = path.parent / "broken.py"
    broken.write_text("\n\nwidth = 1 / 0\n")
    finders = [*sys.meta_path]
    line = refusal(build_model, section(path), VOCAB_SIZE)
    assert "ZeroDivisionError" in line
    assert f"{broken}:3" in line
    assert sys.meta_path == finders


def test_what_was_meant(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def make_model(): ...\n_make_modem = None\n")
    line = refusal(build_model, section(tmp_path / "modle.py"), VOCAB_SIZE)
    assert line.endswith(f"no such file (did you mean {tmp_path / 'model.py'}?)")
    misspelt = section(tmp_path / "model.py", "make_modem")
    line = refusal(build_model, misspelt, VOCAB_SIZE)
    assert line.endswith("no function 'make_modem' (did you mean make_model?)")


def test_file_that_is_not_python(tmp_path: Path) -> None:
    (tmp_path / "model.txt").write_text("x = 1")
    line = refusal(build_model, section(tmp_path / "model.txt"), VOCAB_SIZE)
    assert line.endswith("model.txt': must be a Python file")
    # a compiled file has a loader too
    source = tmp_path / "model.py"
    source.write_text("from torch import nn\ndef make(*_): return nn.Linear(2, 3)\n")
    compiled = tmp_path / "model.pyc"
    py_compile.compile(str(source), str(compiled))
    assert build_model(section(compiled), VOCAB_SIZE).weight.shape == (3, 2)


@pytest.mark.parametrize(
    ("factory", "line"),
    [
        ("nowhere_at_all:make", ": nowhere_at_all: ModuleNotFoundError: "),
        ("torch.nn:Nothing", " = 'torch.nn:Nothing': torch.nn has no function"),
    ],
)
def test_package_that_is_refused(factory: str, line: str) -> None:
    told = refusal(build_model, section(factory=factory), VOCAB_SIZE)
    assert told.startswith(f"model.factory{line}")


class Scripted(nn.Module):
    """Model with one parameter and a given output."""

    def __init__(self, output: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 3))
        self.output = output

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        return self.output(self.weight)


class FailsBackward(torch.autograd.Function):
    """Identity whose backward pass fails."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        raise RuntimeError("no way back")


def having(loss: Any) -> SimpleNamespace:
    return SimpleNamespace(loss=loss)


def spare(layer: nn.Module) -> Scripted:
    """Return a model whose loss is the sum of one weight, with another layer."""
    model = Scripted(lambda w: having(w.sum()))
    model.spare = layer
    return model


def sparse() -> nn.Module:
    model = Scripted(lambda w: having(w.sum() + model.table(torch.tensor([0])).sum()))
    model.table = nn.Embedding(2, 1, sparse=True)
    return model


NO_LOSS = "model: the output has no .loss; it must hold the mean over real targets"
NOTHING_TO_TRAIN = "model: none of its parameters can be trained by its .loss"
# a model or its output, and the start of the line
REFUSED: dict[str, tuple[Any, str]] = {
    "no loss": (lambda w: SimpleNamespace(logits=w), NO_LOSS),
    "nothing": (lambda w: None, NO_LOSS),
    "loss of None": (lambda w: having(None), "model: .loss is None; it must be one"),
    "NaN": (lambda w: having(w.sum() * float("nan")), "model: .loss is tensor(nan"),
    "a loss for each token": (lambda w: having(w.repeat(50, 1)), "model: .loss is "),
    "loss that no parameter moves": (
        lambda w: having(torch.tensor(1.0)),
        NOTHING_TO_TRAIN,
    ),
    "attribute error of its own": (
        lambda w: having(w.nowhere),
        "model: AttributeError: 'Parameter' object has no attribute 'nowhere'",
    ),
    "forward that fails": (
        lambda w: having(w @ w),
        "model: RuntimeError: mat1 and mat2 shapes cannot be multiplied",
    ),
    "backward that gives NaN": (
        lambda w: having((w - w).norm(2, dim=(0, 1)) + (w * 0).sqrt().sum()),
        "model: the gradient of weight holds NaN or infinity at a finite .loss",
    ),
    "forward that ends the process": (
        lambda w: sys.exit("no GPU"),
        "model: SystemExit: no GPU",
    ),
    "backward that fails": (
        lambda w: having(FailsBackward.apply(w).sum()),
        "model: RuntimeError: no way back",
    ),
    "without gradient": (
        spare(nn.Linear(2, 2)),
        "model: parameter spare.weight (2 in all) gets no gradient; use it in the loss",
    ),
    "sparse": (
        sparse(),
        "model: the gradient of table.weight is sparse, must be dense",
    ),
    "lazy": (nn.LazyLinear(1), "model: weight has no shape yet; it must not be lazy"),
    "all frozen": (
        Scripted(lambda w: having(w.sum())).requires_grad_(False),
        NOTHING_TO_TRAIN,
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


def test_place_of_an_error_is_none_of_ours() -> None:
    """If no line of user code failed, no location is given."""
    model = nn.Linear(2, 2)
    line = refusal(try_model, model, BATCH)
    assert line.startswith("model: TypeError: ")
    assert "unexpected keyword argument" in line
    assert ".py:" not in line


def test_place_in_the_default_model_is_named() -> None:
    """It is meant to be edited."""
    model = build_model(tiny_params().model, 2)
    assert "minitrain/model/gpt.py:" in refusal(try_model, model, BATCH)


def test_factory_that_ends_the_process_is_one_line() -> None:
    line = refusal(make_model, lambda: sys.exit("no GPU"), "factory")
    assert line.startswith("factory: SystemExit: no GPU")
