"""Dispatch modes for the witness: float64 throughout, and dropout without its draws.

They see every operation that reaches a kernel, in the forward and in the backward pass,
also those inside composite operations (attention, LSTM).
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

FINER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
ATEN: Any = torch.ops.aten


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


class NoDropout(TorchDispatchMode):
    """A Bernoulli mask is its mean, and nothing is drawn for it.

    Dropout of all kinds draws its mask so (modules, functions, attention, recurrent
    layers) and divides it by that mean: what is left is dropout with p = 0.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is ATEN.bernoulli_.float:
            return args[0].fill_(args[1] if len(args) > 1 else 0.5)
        if func is ATEN.bernoulli.p:
            return torch.full_like(args[0], args[1])
        if func is ATEN.bernoulli.default:
            return args[0].clone()
        if func is ATEN.bernoulli_.Tensor:
            return args[0].copy_(args[1])
        return func(*args, **(kwargs or {}))
