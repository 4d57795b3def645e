"""Modes in which the witness computes: float64 throughout, and training held steady."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode, has_torch_function
from torch.utils._python_dispatch import TorchDispatchMode

FINER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
# functions that drop at random: keyword and place of the probability
DROPS = {
    "scaled_dot_product_attention": ("dropout_p", 4),
    "multi_head_attention_forward": ("dropout_p", 10),
}
# of dropout itself, in all its kinds
DROPOUT = ("p", 1)
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
# overrides no function: for it only a mode does
PLAIN = torch.zeros(())


class Float64(TorchDispatchMode):
    """Whatever would make a float coarser than float64 makes a float64.

    A model's own casts (``.to(torch.bfloat16)``, ``.half()``, ``.float()``) have no
    effect. A coarser operand, such as class weights in float32, is converted where it
    meets a float64; a tensor that is written to keeps its type.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") in FINER:
            kwargs["dtype"] = FINER[kwargs["dtype"]]
        found = {a.dtype for a in (*args, *kwargs.values()) if isinstance(a, Tensor)}
        if torch.float64 in found and found & FINER.keys():
            written = [
                arg.alias_info is not None and arg.alias_info.is_write
                for arg in func._schema.arguments
            ]
            pairs = zip(args, written, strict=False)
            args = [arg if write else _finer(arg) for arg, write in pairs]
            kwargs = {
                key: arg if key == "out" else _finer(arg) for key, arg in kwargs.items()
            }
        return func(*args, **kwargs)


def _finer(arg: Any) -> Any:
    """A coarse tensor in the next finer type; anything else as it is."""
    if isinstance(arg, Tensor) and arg.dtype in FINER:
        return arg.to(FINER[arg.dtype])
    return arg


class Steady(TorchFunctionMode):
    """Training without dropout, and with batch norm as in eval mode, wherever they are
    called from: modules stay in training. Other random numbers are drawn.

    While autograd runs a custom function no mode of functions is in force, so a module
    that a reentrant checkpoint computes again enters this one again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._again: list[nn.Module] = []
        self._hooks: list[Any] = []

    def __enter__(self) -> "Steady":
        self._hooks = [
            register_module_forward_pre_hook(self._enter_again),
            register_module_forward_hook(self._leave_again, always_call=True),
        ]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for hook in self._hooks:
            hook.remove()

    def _enter_again(self, module: nn.Module, inputs: Any) -> None:
        if not has_torch_function((PLAIN,)):
            self._again.append(module)
            super().__enter__()

    def _leave_again(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if self._again and self._again[-1] is module:
            self._again.pop()
            super().__exit__(None, None, None)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name, args, kwargs = getattr(func, "__name__", ""), [*args], {**(kwargs or {})}
        if name in DROPS or "dropout" in name:
            _set(args, kwargs, *DROPS.get(name, DROPOUT), 0.0)
        elif name in RECURRENT:
            # their only number that is no integer
            args = [0.0 if isinstance(arg, float) else arg for arg in args]
        elif func is batch_norm:
            mean = args[1] if len(args) > 1 else kwargs.get("running_mean")
            if mean is not None:
                _set(args, kwargs, "training", 5, False)
        return func(*args, **kwargs)


def _set(
    args: list[Any], kwargs: dict[str, Any], key: str, place: int, value: Any
) -> None:
    if place < len(args):
        args[place] = value
    else:
        kwargs[key] = value
