"""Building the model that ``model.file`` and ``model.factory`` name, and trying it.

Whatever a user's model can get wrong is found here, before any process is launched.
"""

import importlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from minitrain.core.errors import UserError
from minitrain.core.params import Model
from minitrain.data.batches import Batch, causal_lm_loss

_LIBRARIES = ("<", sysconfig.get_path("stdlib"))
# a model that calls sys.exit(0) must not pass for a stage that went well
_FAILURES = (Exception, SystemExit)


def build_model(params: Model, vocab_size: int) -> nn.Module:
    """Call the factory with the ``model`` section and the vocabulary size.

    Raises UserError naming ``model.file`` or ``model.factory`` when it cannot be
    found, fails, or returns something else than a torch.nn.Module.
    """
    factory = _find_factory(params)
    try:
        model = factory(params, vocab_size)
    except _FAILURES as error:
        raise UserError(f"model.factory {params.factory}: {_cause(error)}") from error
    if not isinstance(model, nn.Module):
        raise UserError(
            f"model.factory {params.factory}: returned {type(model).__name__}, "
            "must return a torch.nn.Module"
        )
    return model


def _find_factory(params: Model) -> Callable[..., Any]:
    module_name, _, name = params.factory.rpartition(":")
    module = _import(module_name) if module_name else _load_file(Path(params.file))
    factory = getattr(module, name, None)
    if not callable(factory):
        where = module_name or params.file
        raise UserError(
            f"model.factory = {params.factory!r}: {where} has no function {name!r}"
        )
    return factory


def _import(module_name: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except _FAILURES as error:
        raise UserError(f"model.factory: {module_name}: {_cause(error)}") from error


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError(f"model.file = {str(path)!r}: no such file")
    spec = importlib.util.spec_from_file_location(f"model_file_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"model.file = {str(path)!r}: must be a Python file")
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up by name while it is being executed
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except _FAILURES as error:
        raise UserError(f"model.file {path}: {_cause(error)}") from error
    return module


def _cause(error: BaseException) -> str:
    # the user's own lines, not those of the libraries that they called
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_LIBRARIES)
        and "site-packages" not in frame.filename
        and frame.filename != __file__
    ]
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}{place}"


def try_model(
    model: nn.Module, batch: Batch, *, may_leave_unused: bool = False
) -> None:
    """One forward and backward pass; leaves gradients behind, so give it a spare.

    Raises UserError for a model that fails, whose state is no plain tensors, whose
    output has no finite 0-dim ``loss``, that has nothing to train, or that leaves a
    parameter without a finite dense gradient: stock DDP would let step 0 pass and fail
    at step 1. With ``may_leave_unused`` a parameter may have none.
    """
    _check_state(model)
    try:
        loss = causal_lm_loss(model, batch.inputs)
    except AttributeError as error:
        if error.name != "loss":
            raise UserError(f"model: {_cause(error)}") from error
        raise UserError(
            "model: the output has no .loss; it must hold the mean over real targets"
        ) from None
    except _FAILURES as error:
        raise UserError(f"model: {_cause(error)}") from error
    if isinstance(loss, Tensor) and loss.dim() != 0:
        shape = tuple(loss.shape)
        raise UserError(f"model: .loss is a tensor of shape {shape}; it must be 0-dim")
    if not isinstance(loss, Tensor) or not torch.isfinite(loss):
        raise UserError(f"model: .loss is {loss!r}; it must be one finite number")
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    if not trained or not loss.requires_grad:
        raise UserError("model: no parameter of it can be trained by its .loss")
    try:
        loss.backward()
    except _FAILURES as error:
        raise UserError(f"model: {_cause(error)}") from error
    unused = [name for name, p in trained.items() if p.grad is None]
    if unused and not may_leave_unused:
        raise UserError(
            f"model: parameter {unused[0]} ({len(unused)} in all) gets no gradient; "
            "use it in the loss, set requires_grad to False, or "
            "train.find_unused_parameters to true"
        )
    for name, parameter in trained.items():
        gradient = parameter.grad
        if gradient is None:
            continue
        if gradient.layout is not torch.strided:
            raise UserError(f"model: the gradient of {name} is sparse, must be dense")
        if not gradient.isfinite().all():
            raise UserError(
                f"model: the gradient of {name} holds NaN or infinity at a finite .loss"
            )


def _check_state(model: nn.Module) -> None:
    for name, value in model.state_dict().items():
        if is_lazy(value):
            raise UserError(f"model: {name} has no shape yet; it must not be lazy")
        if not isinstance(value, Tensor) or value.is_meta:
            raise UserError(f"model: {name} in its state must be a tensor with values")
