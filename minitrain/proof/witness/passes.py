"""Naive losses and gradients: one forward and backward pass per slice of a batch."""

import pickle
import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode, has_torch_function
from torch.utils._python_dispatch import TorchDispatchMode

from minitrain.proof.witness.record import (
    Record,
    Task,
    Tensors,
    chosen,
    doubled,
    names_of,
)

SIXTEEN_BITS = {"bf16": torch.bfloat16, "fp16": torch.float16}
# initial scale of GradScaler, halved until nothing overflows
LARGEST_SCALE, HALVINGS = 65536.0, 24
FINER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
# functions with dropout: keyword and position of the probability
DROPS = {
    "scaled_dot_product_attention": ("dropout_p", 4),
    "multi_head_attention_forward": ("dropout_p", 10),
}
# the same for dropout functions themselves
DROPOUT = ("p", 1)
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
# a plain tensor: only a mode can override functions of it
PLAIN = torch.zeros(())
# slices of a rank that start from the same buffers, processed in order
Groups = list[list[Any]]
State = Mapping[str, Tensor]


@dataclass(frozen=True)
class Pass:
    """A loss and its gradients by name (or how far rounding moves each of them).
    ``drew``: random numbers were drawn; ``unit``: one ULP of 1.0 in the loss's dtype.
    """

    loss: float
    gradients: Tensors
    drew: bool = False
    unit: float = 0.0

    def of(self, name: str, like: Tensor) -> Tensor:
        """Return the gradient of ``name``; zeros like ``like`` if it is unused."""
        found = self.gradients.get(name)
        return torch.zeros_like(like) if found is None else found

    def largest(self) -> float:
        """Return the largest absolute element of all gradients."""
        return max((size(g) for g in self.gradients.values()), default=0.0)

    def far_from(self, other: "Pass") -> float:
        """Return the largest relative difference from ``other``: of gradients, divided
        by its largest element; of losses, by its loss (maybe 0) plus that element.
        """
        named = other.gradients.items()
        apart = max((size(self.of(n, g) - g) for n, g in named), default=0.0)
        largest = other.largest() + 1e-300
        far = abs(self.loss - other.loss) / (abs(other.loss) + largest)
        return max(far, apart / largest)

    def flat(self, like: "Pass") -> Tensor:
        """Return the gradients named in ``like`` as one flat tensor, in its order."""
        named = like.gradients.items()
        return torch.cat([self.of(name, g).flatten() for name, g in named])

    def is_finite(self) -> bool:
        """Return whether loss and gradients have neither a NaN nor an infinity."""
        return bool(torch.tensor(self.loss).isfinite()) and all(
            bool(g.isfinite().all()) for g in self.gradients.values()
        )


def size(tensor: Tensor) -> float:
    """Return the largest absolute value, 0 if the tensor is empty."""
    return float(tensor.abs().max()) if tensor.numel() else 0.0


class Computer:
    """Computes losses and gradients of a task, in float64 and in the run's precision,
    for ``batch_of(step)``: the whole batch, or sliced as the ranks computed it.
    """

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        record: Record,
        batch_of: Callable[[int], Any],
    ) -> None:
        self.task, self.record, self.batch_of = task, record, batch_of
        self.own, self.fine = model, built(task)
        self.modes = [module.training for module in self.own.modules()]
        self.type = torch.float64
        # the reason if it cannot compute in float64
        self.failed = ""

    def groups_of(self, step: int) -> Groups:
        """Return the batch of ``step`` in slices: for each shard, a group of its
        micro-batches. If the forward pass communicates: one group, in which micro-batch
        k holds the k-th of every rank. Samples with equal content are interchangeable.
        """
        batch, whole = self.batch_of(step), self.task.whole
        places = {name: place for place, name in enumerate(names_of(batch))}
        groups: dict[Any, dict[int, list[int]]] = {}
        for row in self.record.kind("fed"):
            for number, part in enumerate(row["parts"] if row["step"] == step else ()):
                key = "all" if whole else (row["rank"], part["shard"])
                group = groups.setdefault(key, defaultdict(list))
                group[number] += [places[name] for name in part["samples"]]
        return [
            [chosen(batch, rows) for rows in group.values() if rows]
            for group in groups.values()
        ]

    def exact(
        self, state: State, groups: Groups, evaluate: bool, *, steady: bool = False
    ) -> Pass:
        """Return mean loss and gradients over all slices, starting from ``state``, in
        float64 or, if that fails, in the model's own type. ``evaluate``: eval mode;
        ``steady``: without dropout, batch norm as in eval mode.
        """
        with Steady() if steady else nullcontext():
            if self.type == torch.float64:
                # tensors that the model creates are float64 too
                kept = torch.get_default_dtype()
                torch.set_default_dtype(torch.float64)
                try:
                    fine = doubled(groups)
                    with Float64():
                        return self._compute(self.fine.double(), state, fine, evaluate)
                except Exception as error:
                    self.failed = f"in float64 {failure(error)}"
                    self.type, self.fine = torch.float32, self.own
                finally:
                    torch.set_default_dtype(kept)
            return self._compute(self.fine, state, groups, evaluate)

    def own_precision(
        self,
        state: State,
        groups: Groups,
        bits: str,
        evaluate: bool,
        seed: int = 0,
    ) -> Pass:
        """Return mean loss and gradients in the run's precision ``bits``, with random
        numbers from ``seed``. In fp16 the loss has the largest scale that does not
        overflow (in eval mode at most 1).
        """
        dtype, scale = SIXTEEN_BITS.get(bits), 1.0
        if bits == "fp16" and not evaluate:
            scale = LARGEST_SCALE
        for _ in range(HALVINGS):
            with torch.autocast("cpu", dtype) if dtype else nullcontext():
                one = self._compute(self.own, state, groups, evaluate, seed, scale)
            if bits != "fp16" or one.is_finite():
                break
            scale /= 2
        return one

    def nudged(self, state: State, seed: int) -> Tensors:
        """Return a copy of ``state`` with every parameter moved up or down at random by
        1 or 2 ULP, equally under all names of a tied one; unchanged with ``seed`` 0.
        """
        chance, moved = torch.Generator().manual_seed(seed), dict(state)
        known: dict[int, Tensor] = {}
        named = self.own.named_parameters(remove_duplicate=False)
        for name, parameter in named if seed else ():
            if id(parameter) not in known:
                tensor = state[name]
                sign = torch.randint(0, 2, tensor.shape, generator=chance) * 2.0 - 1
                unit = torch.finfo(tensor.dtype).eps
                one = (tensor.double() * (1 + unit * sign)).to(tensor.dtype)
                known[id(parameter)] = one
            moved[name] = known[id(parameter)]
        return moved

    def _compute(
        self,
        model: nn.Module,
        state: State,
        groups: Groups,
        evaluate: bool,
        seed: int = 0,
        scale: float = 1.0,
    ) -> Pass:
        # mean over the targets of all slices; gradients are divided by ``scale``
        seed_everything(seed)
        for module, mode in zip(model.modules(), self.modes, strict=True):
            module.training = mode and not evaluate
        before = random_state()
        targets = sum(self.task.count(part) for group in groups for part in group)
        total, unit = 0.0, 0.0
        found: Tensors = {}
        for group in groups:
            # every rank starts from the same buffers, and its micro-batches change them
            model.load_state_dict(state)
            for part in group:
                share = self.task.count(part) / targets
                # the mean over no target is NaN
                if share:
                    model.zero_grad()
                    loss = self.task.loss(model, part)
                    # function modes are not active within Tensor.backward
                    torch.autograd.backward(loss * (share * scale))
                    total += share * loss.item()
                    unit = torch.finfo(loss.dtype).eps
                    _add_gradients(model, found)
        for gradient in found.values() if scale != 1 else ():
            gradient /= scale
        return Pass(total, found, before != random_state(), unit)


def _add_gradients(model: nn.Module, found: Tensors) -> None:
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        if gradient is None:
            continue
        if name in found:
            found[name] += gradient
        else:
            # sums in float64 do not depend on the number of slices
            found[name] = gradient.to(torch.float64, copy=True)


class Float64(TorchDispatchMode):
    """Context manager that replaces coarser floating-point types by float64. A model's
    own casts (``.to(torch.bfloat16)``, ``.half()``, ``.float()``) have no effect. A
    coarser operand, such as class weights in float32, is converted when combined with a
    float64 tensor; a tensor that is written to keeps its type.
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
    if isinstance(arg, Tensor) and arg.dtype in FINER:
        return arg.to(FINER[arg.dtype])
    return arg


class Steady(TorchFunctionMode):
    """Context manager that disables dropout and uses batch norm as in eval mode,
    although modules stay in training mode. Other random numbers are still drawn.

    Function modes are inactive while autograd runs a custom function, so a module that
    a reentrant checkpoint recomputes enters this mode a second time.
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
            # the dropout probability is their only float
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


def built(task: Task) -> nn.Module:
    """Build the model with a fixed seed, as random values may not be in its state."""
    seed_everything(0)
    return task.build()


def failure(error: Exception) -> str:
    """Return one line on an error of the model: its type and start of the message."""
    message = " ".join(str(error).split())[:100]
    return ": ".join(filter(None, (type(error).__name__, message)))


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def random_state() -> bytes:
    """Return the states of Python's, NumPy's and torch's generators as bytes."""
    own = random.getstate(), np.random.get_state(), torch.get_rng_state().numpy()
    return pickle.dumps(own)
