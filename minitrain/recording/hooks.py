"""Helpers of the recorder's hooks: kind of a forward pass, wrappers, and plain names.

None of them draws random numbers or changes a value.
"""

import inspect
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from types import FrameType, FunctionType
from typing import Any, TypeVar

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

from minitrain.comm.torch_private import import_compiler
from minitrain.core.errors import UserError

# as the first optimizer would, but so that it leaves no folder
import_compiler()
Method = TypeVar("Method", bound=Callable[..., Any])
Named = TypeVar("Named", bound=Tensor | nn.Module)
# under these names DDP, torch.compile, Fabric and others hold the model they wrap
INSIDE = ("module", "_orig_mod", "_forward_module")
# prefixes that wrappers of a submodule add to the names of parameters
ADDED = ("_orig_mod.", "_checkpoint_wrapped_module.")
# the function in which a module calls its hooks and its forward pass
CALL = (torch.nn.modules.module.__file__, "_call_impl")
# the function in which an optimizer calls its hooks and its step
STEP = (Optimizer.profile_hook_step.__code__.co_filename, "wrapper")
# functions of torch.utils.checkpoint that recompute a forward pass within backward
AGAIN = {"recompute_fn", "backward"}
# the function by which torch.compile runs what it compiled
COMPILED = "compile_wrapper"


def uncompiled(method: Method) -> Method:
    """Return ``method``, excluded from torch.compile (a graph break in its callers)."""
    return torch.compiler.disable(method)


class Tap:
    """A hook that calls ``do``. Its copy or pickle does nothing, so that a model may be
    copied or saved as a whole while it is recorded.
    """

    def __init__(self, do: Callable[..., None]) -> None:
        self._do = do

    # compiled, it would be recompiled for each number that the recorder counts
    @uncompiled
    def __call__(self, *args: Any) -> None:
        self._do(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        # a function of the standard library, so that no reader needs minitrain
        return getattr, (nullcontext(), "__exit__")


def innermost(model: nn.Module) -> nn.Module:
    """Return the user's own model, without wrappers such as DDP or torch.compile's."""
    children = dict(model.named_children())
    for name in INSIDE:
        # a wrapper has no parameters of its own
        if name in children and {*model.parameters()} <= {*children[name].parameters()}:
            return innermost(children[name])
    return model


def called_modules(inner: nn.Module) -> list[nn.Module]:
    """Return the modules whose forward passes are recorded: the model, or, if it is a
    container without ``forward`` (``ModuleDict``), the models in it.
    """
    if getattr(inner.forward, "__func__", None) is not nn.Module.forward:
        return [inner]
    children = map(innermost, inner.children())
    return [module for child in children for module in called_modules(child)]


def plain_names(
    inner: nn.Module, named: Iterable[tuple[str, Named]]
) -> dict[str, Named]:
    """Return ``named``, such as ``inner.named_parameters()``, with prefixes of wrappers
    removed from the names; of modules that then have one name, the innermost.
    """
    wrapped = [
        f"{path}."
        for path, module in inner.named_modules()
        if path and isinstance(module, DataParallel | DistributedDataParallel)
    ]
    found = {}
    for name, tensor in named:
        # a wrapper within another one comes first
        for path in reversed(wrapped):
            if name.startswith(path):
                name = path + name.removeprefix(f"{path}module.")
        for added in ADDED:
            name = name.replace(added, "")
        found[name] = tensor
    return found


def parameters_of(inner: nn.Module) -> dict[str, nn.Parameter]:
    """Return the current parameters by name, without prefixes of wrappers."""
    return plain_names(inner, inner.named_parameters())


def tied(inner: nn.Module) -> dict[str, str]:
    """Map each further name of a tied (shared) parameter to its first name."""
    named = plain_names(inner, inner.named_parameters(remove_duplicate=False))
    first: dict[int, str] = {}
    found = {name: first.setdefault(id(p), name) for name, p in named.items()}
    return {name: other for name, other in found.items() if name != other}


def is_in_parts(parameter: Tensor) -> bool:
    """Return true if the parameter is sharded: each rank holds a shard of it."""
    return hasattr(parameter, "full_tensor")


def is_sharded(inner: nn.Module) -> bool:
    """Return true if some parameters are sharded over the ranks."""
    return any(map(is_in_parts, inner.parameters()))


def require_whole(inner: nn.Module) -> None:
    """Raise UserError if ``inner`` is sharded in a way that cannot be recorded."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return
    if any(isinstance(m, fsdp.FullyShardedDataParallel) for m in inner.modules()):
        raise UserError(
            "record: model is in FullyShardedDataParallel, whose parameters have no "
            "names of their own: use fully_shard"
        )
    if isinstance(inner, fsdp.FSDPModule) and not is_sharded(inner):
        raise UserError(
            "record: fully_shard(model) was called after the recorder's start: call it "
            "before"
        )


def is_training_pass(module: nn.Module) -> bool:
    """Return true if the running forward pass is part of the training: in training
    mode, with gradients, and no recomputation for activation checkpointing.
    """
    if not module.training:
        return False
    checkpointing = _checkpointing()
    # reentrant checkpointing runs the first pass without gradients
    kept = torch.is_grad_enabled() or "forward" in checkpointing
    return kept and not checkpointing & AGAIN


def is_recomputation() -> bool:
    """Return true if activation checkpointing recomputes the running forward pass."""
    return not _checkpointing().isdisjoint(AGAIN)


def _checkpointing() -> set[str]:
    # names of the functions of torch.utils.checkpoint that are running
    codes = [frame.f_code for frame in _frames()]
    file = torch.utils.checkpoint.__file__
    return {code.co_name for code in codes if code.co_filename == file}


def is_within_itself(module: nn.Module) -> bool:
    """Return true if a pass of ``module`` runs within another, as in Lightning."""
    return sum(caller is module for caller in _callers(CALL)) > 1


def running_steps() -> list[Optimizer | None]:
    """Return the optimizers whose steps are running, of nested ones the inner first."""
    return [*_callers(STEP)]


def is_compiled(module: nn.Module) -> bool:
    """Return true if torch.compile runs some of the forward pass of ``module``."""
    marked = any(
        hasattr(m, "_orig_mod")
        or getattr(m, "_compiled_call_impl", None)
        # a method of it; other objects may answer for any name
        or any(
            hasattr(held, "_torchdynamo_orig_callable")
            for held in vars(m).values()
            if isinstance(held, FunctionType)
        )
        for m in module.modules()
    )
    return marked or any(one.f_code.co_name == COMPILED for one in _frames())


def _callers(function: tuple[str, str]) -> Iterator[Any]:
    # the ``self`` of each running call of ``function`` (file and name)
    for frame in _frames():
        if (frame.f_code.co_filename, frame.f_code.co_name) == function:
            # a compiled one may have lost it
            yield frame.f_locals.get("self")


def _frames() -> Iterator[FrameType]:
    frame = inspect.currentframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


def fails_without_sync(wrapper: nn.Module | None) -> bool:
    """Return true for DDP with a static graph in no_sync(): its first pass fails."""
    is_static = getattr(wrapper, "static_graph", False)
    return is_static and not getattr(wrapper, "require_backward_grad_sync", True)


class Wrappers:
    """The wrappers, such as DDP, that have called modules so far."""

    def __init__(self) -> None:
        # with the ``id`` of the module that it wraps
        self._seen: list[tuple[weakref.ref[nn.Module], int]] = []

    def around(self, module: nn.Module) -> nn.Module | None:
        """Return the innermost wrapper whose pass, now running, called ``module``."""
        wrappers = (caller for caller in _callers(CALL) if _wraps(caller, module))
        found = next(wrappers, None)
        if found is not None and all(one() is not found for one, _ in self._seen):
            self._seen.append((weakref.ref(found), id(module)))
        return found

    @property
    def count(self) -> int:
        """Return the largest number of wrappers that have called one module so far."""
        return max(Counter(module for _, module in self._seen).values(), default=0)


def _wraps(caller: nn.Module, module: nn.Module) -> bool:
    # a compiled module cannot be bypassed, so it counts as no wrapper
    names = {*INSIDE} - {"_orig_mod"}
    children = caller.named_children()
    return any(name in names and innermost(c) is module for name, c in children)
