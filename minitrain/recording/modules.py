"""Fingerprints of the inputs and outputs of each module of the model in a recorded
step, in the order in which the calls end.
"""

import math
from functools import partial
from typing import Any

import torch
from blake3 import blake3
from torch import nn
from torch.utils.hooks import RemovableHandle

from minitrain.data.cut import tensors_of
from minitrain.recording.fingerprint import BINS, DIGEST_BYTES, fingerprint
from minitrain.recording.format import Row
from minitrain.recording.hooks import Tap, plain_names

# the fingerprint of values that cannot be read
NOTHING: Row = {"hash": "", "norm": 0.0, "sketch": [0.0] * BINS}


class CallTap(Tap):
    """A hook that torch.compile skips, for which it would be a graph break."""

    def __call__(self, *args: Any) -> None:
        if not torch.compiler.is_compiling():
            super().__call__(*args)


class ModuleCalls:
    """Record the modules called in one forward pass, from :meth:`listen` to
    :meth:`forget`: each call appends a row to ``calls``.
    """

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []
        # calls that have begun: the module's name, and fingerprint of its inputs
        self._begun: list[tuple[str, Row]] = []
        self.calls: list[Row] = []

    def listen(self, inner: nn.Module, called: nn.Module) -> None:
        """Add hooks to all modules in ``called``; rows name them as ``inner`` does."""
        self.forget()
        self.calls = []
        paths = ((f"{path}.", module) for path, module in inner.named_modules())
        # TorchScript has no such hooks
        hooked = {
            id(module)
            for module in called.modules()
            if module is not called and not isinstance(module, torch.jit.ScriptModule)
        }
        for path, module in plain_names(inner, paths).items():
            if id(module) in hooked:
                name = path.removesuffix(".")
                begin, end = partial(self._begin, name), partial(self._end, name)
                self._handles += [
                    module.register_forward_pre_hook(CallTap(begin), with_kwargs=True),
                    module.register_forward_hook(CallTap(end)),
                ]

    def forget(self) -> None:
        """Remove the hooks; ``calls`` stays."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._begun.clear()

    def _begin(self, name: str, module: nn.Module, args: Any, options: Any) -> None:
        self._begun.append((name, _print([args, options])))

    def _end(self, name: str, module: nn.Module, args: Any, outputs: Any) -> None:
        # skip calls within this one that an error ended
        while self._begun:
            begun, inputs = self._begun.pop()
            if begun == name:
                row = {"module": name, "inputs": inputs, "outputs": _print(outputs)}
                self.calls.append(row)
                return


def _print(value: Any) -> Row:
    # join all tensors at any depth; one that cannot be read must not end the run
    try:
        tensors = [tensor.detach() for tensor in tensors_of(value)]
        # read only the local shard of a sharded one: gathering it needs all ranks
        prints = [fingerprint(getattr(t, "_local_tensor", t)) for t in tensors]
    except Exception:
        return NOTHING
    if len(prints) == 1:
        return prints[0]
    digest = blake3("".join(one["hash"] for one in prints).encode())
    sketches = zip(*(one["sketch"] for one in (NOTHING, *prints)), strict=True)
    return {
        "hash": digest.hexdigest(length=DIGEST_BYTES),
        "norm": math.hypot(*(one["norm"] for one in prints)),
        "sketch": [sum(each) for each in sketches],
    }
