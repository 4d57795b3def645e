"""A factory that does not draw a large model's weights again and again.

A ladder builds a model a dozen times, most of them from the same seed. What a factory
gave is copied, and the generators are moved as it moved them: the same model, unless
the factory looks at more than its generators; then the ranks, whose factory runs in
their own processes, would be told from their replay.
"""

import io
import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.train.rng import (
    RandomState,
    random_state,
    restore_random_state,
    same_random_state,
    seed_everything,
    untouched_random_state,
)


@dataclass
class Again:
    """``factory``, called once for each state of the generators."""

    factory: Callable[[], nn.Module]
    _made: list[tuple[RandomState, "Mould", RandomState]] = field(default_factory=list)

    def __call__(self) -> nn.Module:
        """A new model, as the factory makes it."""
        before = random_state()
        for known, mould, after in self._made:
            if same_random_state(known, before):
                restore_random_state(after)
                return mould.cast()
        model = self.factory()
        # of what cannot be copied there is none: it is made anew each time
        with suppress(Exception):
            self._made.append((before, Mould(model), random_state()))
        return model

    def __getstate__(self) -> dict[str, Any]:
        # ranks make their own
        return {"factory": self.factory, "_made": []}


class Counted:
    """A ``factory`` whose first model was made to count its ``parameters``, with the
    seed of rank 0, and is given out first.
    """

    def __init__(self, factory: Callable[[], nn.Module]) -> None:
        self.factory = factory
        with untouched_random_state():
            seed_everything(0)
            made = factory()
        own = made.parameters() if isinstance(made, nn.Module) else ()
        self.parameters = sum(parameter.numel() for parameter in own)
        self._first: nn.Module | None = made

    def __call__(self) -> nn.Module:
        """A new model."""
        made, self._first = self._first, None
        return self.factory() if made is None else made

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_first": None}


class NoCopy(Exception):
    """A model whose copy could be another."""


class Mould:
    """A model taken apart into its structure, pickled, and copies of its tensors.

    Pickle refuses what a copy would share with the model by mistake, such as a function
    that holds on to its layers.
    """

    def __init__(self, model: nn.Module) -> None:
        self._tensors: dict[str, Tensor] = {}
        self._structure = io.BytesIO()
        pickler = _Taking(self._structure)
        pickler.dump(model)
        storages = {t.untyped_storage().data_ptr() for t in pickler.found.values()}
        if len(storages) != len(pickler.found):
            raise NoCopy("tensors that share memory")
        self._tensors = {key: _copy(t) for key, t in pickler.found.items()}

    def cast(self) -> nn.Module:
        """The model once more."""
        self._structure.seek(0)
        found: nn.Module = _Putting(self._structure, self._tensors).load()
        return found


class _Taking(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.found: dict[str, Tensor] = {}

    def persistent_id(self, value: Any) -> str | None:
        if not isinstance(value, Tensor):
            return None
        # tied weights are one tensor, and stay one
        key = str(id(value))
        self.found[key] = value
        return key


class _Putting(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: dict[str, Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors
        self._put: dict[str, Tensor] = {}

    def persistent_load(self, key: str) -> Tensor:
        if key not in self._put:
            self._put[key] = _copy(self._tensors[key])
        return self._put[key]


def _copy(tensor: Tensor) -> Tensor:
    """A leaf with the same bytes, laid out alike, and the same attributes."""
    attributes = vars(tensor)
    plain = all(isinstance(v, int | float | str | None) for v in attributes.values())
    usual = type(tensor) in (Tensor, nn.Parameter) and tensor.is_leaf
    hooks = tensor._backward_hooks or getattr(
        tensor, "_post_accumulate_grad_hooks", None
    )
    if not (plain and usual and tensor.numel()) or hooks or tensor.grad is not None:
        raise NoCopy("a tensor that is more than its bytes")
    data = tensor.detach().clone(memory_format=torch.preserve_format)
    if data.stride() != tensor.stride():
        raise NoCopy("a tensor with gaps")
    if isinstance(tensor, nn.Parameter):
        data = nn.Parameter(data, requires_grad=tensor.requires_grad)
    else:
        data.requires_grad_(tensor.requires_grad)
    vars(data).update(attributes)
    return data
