"""States by name: ours and foreign ones, of every format in :mod:`.formats`."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from minitrain.compare.entries import Inert, Unread
from minitrain.compare.formats import entries
from minitrain.core.errors import UserError

# more entries than any state has: a small file can nest lists to billions
MOST_ENTRIES = 1_000_000


class OnDisk(Mapping[str, Tensor]):
    """Tensors by name, each read when it is looked up."""

    def __init__(self, source: Path, stored: Mapping[str, Tensor | Unread]) -> None:
        self._source, self._stored = source, stored

    def __getitem__(self, name: str) -> Tensor:
        stored = self._stored[name]
        tensor = stored.read() if isinstance(stored, Unread) else stored
        is_plain = tensor.layout is torch.strided and not (
            tensor.is_quantized or tensor.is_nested or tensor.is_meta
        )
        if not is_plain:
            raise UserError(
                f"{self._source}: tensor {name} is not plain: sparse, quantized, "
                "nested, or without values (meta)"
            )
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    def is_held(self, name: str) -> bool:
        """Return whether it stays where it is in memory, with all that share it."""
        return not isinstance(self._stored[name], Unread)

    def renamed(self, names: Mapping[str, str]) -> "OnDisk":
        """Return those of ``names`` alone (new name: name that it has)."""
        return OnDisk(self._source, {new: self._stored[n] for new, n in names.items()})


@dataclass(frozen=True)
class State:
    """Entries of a file or a folder by name; names of nested entries are joined by
    dots. ``objects`` are those whose class was not imported, with its name.
    """

    tensors: Mapping[str, Tensor]
    values: Mapping[str, object] = field(default_factory=dict)
    objects: Mapping[str, str] = field(default_factory=dict)

    def renamed(self, rename: Callable[[str], str | None]) -> "State":
        """Return it by other names, without those that get none; unchanged if two names
        would become one.
        """
        pairs = [(rename(name), name) for name in (*self.tensors, *self.values)]
        names = {new: name for new, name in pairs if new is not None}
        if len(names) < sum(new is not None for new, _ in pairs):
            return self
        tensors = {new: name for new, name in names.items() if name in self.tensors}
        return replace(
            self,
            tensors=self.tensors.renamed(tensors)
            if isinstance(self.tensors, OnDisk)
            else {new: self.tensors[name] for new, name in tensors.items()},
            values={n: self.values[o] for n, o in names.items() if n not in tensors},
        )


def read_state(path: Path, prefix: str = "") -> State:
    """Read ``path``; a leading ``prefix`` is taken off every name that has it.

    Raises UserError for what is empty, torn, of another kind, or would have to run code
    to be read; looking at a tensor that is not plain (sparse, quantized, nested, meta)
    raises it too.
    """
    tensors: dict[str, Tensor | Unread] = {}
    values: dict[str, object] = {}
    objects: dict[str, str] = {}
    try:
        found = [*islice(entries(path), MOST_ENTRIES + 1)]
    except RecursionError:
        raise UserError(f"{path}: nested too deeply to be read") from None
    if len(found) > MOST_ENTRIES:
        raise UserError(f"{path}: has more than {MOST_ENTRIES:,} entries")
    for full, leaf in found:
        name = full.removeprefix(prefix)
        if isinstance(leaf, Inert):
            objects[name] = leaf.path
        elif name in tensors or name in values:
            raise UserError(f"{path}: two entries are named {name!r}")
        elif isinstance(leaf, Tensor | Unread):
            tensors[name] = leaf
        else:
            values[name] = leaf
    if not tensors and not values:
        raise UserError(f"{path}: holds nothing to compare")
    return State(OnDisk(path, tensors), values, objects)
