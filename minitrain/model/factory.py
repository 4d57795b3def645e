"""Model construction from ``model.file`` and ``model.factory``, and a trial step.

Errors in a user's model are reported here, before any process is launched.
"""

import importlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from minitrain.core.errors import UserError, did_you_mean
from minitrain.core.files import nearest_file
from minitrain.core.params import Model
from minitrain.data.batches import MicroBatch, causal_lm_loss

Loss = Callable[[nn.Module, Any], Tensor]
# name of a user's loss in messages
GIVEN = "loss(model, batch)"
_CALLER = causal_lm_loss.__code__.co_filename
_LIBRARIES = ("<", sysconfig.get_path("stdlib"), __file__, _CALLER)
# SystemExit: a model that calls sys.exit(0) must not look like a successful stage
_FAILURES = (Exception, SystemExit)


def build_model(params: Model, vocab_size: int) -> nn.Module:
    """Return the model that the factory builds, called with ``params`` (the ``model``
    section) and ``vocab_size``. A factory in ``model.file`` can import modules of that
    folder. Raises UserError if it is not found, fails or returns no torch.nn.Module.
    """
    of_file = ":" not in params.factory
    with neighbors_of(Path(params.file)) if of_file else nullcontext():
        factory = partial(_find_factory(params), params, vocab_size)
        return make_model(factory, f"model.factory {params.factory}")


def make_model(factory: Callable[[], Any], name: str) -> nn.Module:
    """Return ``factory()``; raises a UserError that starts with ``name`` if it fails or
    does not return a torch.nn.Module.
    """
    try:
        model = factory()
    except _FAILURES as error:
        raise UserError(f"{name}: {_cause(error)}") from error
    if not isinstance(model, nn.Module):
        raise UserError(
            f"{name}: returned {type(model).__name__}, must return a torch.nn.Module"
        )
    return model


def _find_factory(params: Model) -> Callable[..., Any]:
    module_name, _, name = params.factory.rpartition(":")
    where, path = module_name or params.file, Path(params.file)
    if not module_name and not path.is_file():
        near = nearest_file(path)
        raise UserError(f"model.file = {params.file!r}: no such file{near}")
    try:
        module = importlib.import_module(where) if module_name else execute(path)
    except _FAILURES as error:
        key = "model.factory:" if module_name else "model.file"
        raise UserError(f"{key} {where}: {_cause(error)}") from error
    factory = getattr(module, name, None)
    if not callable(factory):
        near = did_you_mean(name, [n for n in vars(module) if not n.startswith("_")])
        raise UserError(
            f"model.factory = {params.factory!r}: {where} has no function {name!r}"
            f"{near}"
        )
    return factory


def execute(path: Path) -> ModuleType:
    """Execute a user's Python file as a new module and return it; errors propagate."""
    spec = importlib.util.spec_from_file_location(f"user_file_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError("must be a Python file")
    module = importlib.util.module_from_spec(spec)
    # dataclasses look up their module by name during its execution
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@contextmanager
def neighbors_of(file: Path) -> Iterator[None]:
    """Context manager: imports in the body first search the folder of ``file``.
    Imported modules stay in ``sys.modules``.
    """
    # Python's cached folder listing may be stale
    importlib.invalidate_caches()
    folder = str(file.resolve().parent)
    sys.path[:0] = [folder]
    try:
        yield
    finally:
        sys.path.remove(folder)


def _cause(error: BaseException) -> str:
    # adds the innermost line that is in no library
    files = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    users = [
        f" ({file}:{line})"
        for file, line in files
        if not file.startswith(_LIBRARIES) and "site-packages" not in file
    ]
    place = users[-1] if users else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{place}"


def try_model(
    model: nn.Module,
    batch: MicroBatch,
    *,
    loss: Loss | None = None,
    may_leave_unused: bool = False,
) -> None:
    """Check ``model`` by a forward and a backward pass, which leaves gradients.

    ``loss(model, inputs)`` defaults to the output's ``.loss``. Raises UserError if the
    model fails, its state has values other than plain tensors, its loss is not a finite
    0-dim tensor, or a parameter gets no finite dense gradient (stock DDP fails only at
    step 1). If ``may_leave_unused``, parameters without a gradient are accepted.
    """
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor) or is_lazy(value) or value.is_meta:
            raise UserError(f"model: {name} in its state must be a tensor with values")
    value = computed_loss(model, batch, loss)
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    if not trained or not value.requires_grad:
        by = "its .loss" if loss is None else GIVEN
        why = ", which has no grad_fn" if trained else ""
        raise UserError(f"model: none of its parameters can be trained by {by}{why}")
    try:
        value.backward()
    except _FAILURES as error:
        raise UserError(f"model: {_cause(error)}") from error
    gradients = {name: p.grad for name, p in trained.items() if p.grad is not None}
    unused = [name for name in trained if name not in gradients]
    if unused and not may_leave_unused:
        raise UserError(
            f"model: parameter {unused[0]} ({len(unused)} in all) gets no gradient; "
            "use it in the loss, set requires_grad to False, or "
            "train.find_unused_parameters to true"
        )
    for name, gradient in gradients.items():
        if gradient.layout is not torch.strided or not gradient.isfinite().all():
            raise UserError(f"model: the gradient of {name} must be dense and finite")


class Wrapped(DistributedDataParallel):
    """Stand-in for DDP's wrapper in one process, to try a user's loss function."""

    def __init__(self, module: nn.Module) -> None:
        nn.Module.__init__(self)
        self.module = module

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Return the output of the wrapped module."""
        return self.module(*arguments, **named)


def computed_loss(model: nn.Module, batch: MicroBatch, loss: Loss | None) -> Tensor:
    """Return the loss of ``batch``; UserError unless it is a finite 0-dim tensor."""
    called, value = ("model", "model: .loss") if loss is None else (GIVEN, GIVEN)
    try:
        found: Any = (loss or causal_lm_loss)(model, batch.inputs)
    except _FAILURES as error:
        if loss is None and isinstance(error, AttributeError) and error.name == "loss":
            raise UserError(
                "model: the output has no .loss; it must hold the mean over real "
                "targets"
            ) from None
        of_wrapper = isinstance(error, AttributeError) and (
            isinstance(error.obj, Wrapped)
            or (error.name == "module" and error.obj is model)
        )
        hint = "; ranks pass the wrapper: use minitrain.ddp.unwrap(model)"
        raise UserError(
            f"{called}: {_cause(error)}{hint if of_wrapper else ''}"
        ) from error
    must = "must be one finite 0-dim floating-point tensor"
    if not isinstance(found, Tensor):
        raise UserError(f"{value} is a {type(found).__name__}; it {must}")
    if found.dim() or not found.is_floating_point() or not found.isfinite():
        shown = repr(found) if found.dim() == 0 else f"of shape {tuple(found.shape)}"
        raise UserError(f"{value} is {shown}; it {must}")
    return found
