"""Parts that readers of checkpoints share: tensors that stay on disk, stand-ins for
classes that a checkpoint names, so that none of their code runs.

Checkpoints of training scripts hold objects (``argparse.Namespace``, enums, NumPy
arrays) next to the tensors. PyTorch's restricted unpickler reads such a file where each
unknown class is replaced by an empty one that only keeps what it was given.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# a name, and a Tensor, Unread or a plain value
Entry = tuple[str, object]
# behind the name of a tensor of which one rank's part is there
PART = " (part)"


@dataclass(frozen=True)
class Unread:
    """A tensor on disk; ``read`` gives it."""

    read: Callable[[], Tensor]


class Inert:
    """An object of a class that was not imported; ``held`` is what it was given."""

    path = ""

    def __new__(cls, *arguments: Any) -> "Inert":
        made = object.__new__(cls)
        made.held = [*arguments]
        return made

    def __init__(self, *arguments: Any) -> None:
        self.held: list[Any]

    def __setstate__(self, state: Any) -> None:
        self.held.append(state)

    def __getattr__(self, name: str) -> Any:
        for held in vars(self).get("held", ()):
            if isinstance(held, dict) and name in held:
                return held[name]
        raise AttributeError(name)


def load_inert(path: Path, **options: Any) -> object:
    """Read a zip file of ``torch.save`` with stand-ins for its unknown classes."""
    names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    known = [(type(name, (Inert,), {"path": name}), name) for name in names]
    with torch.serialization.safe_globals([*known]):
        return torch.load(path, weights_only=True, **options)


def leaves(entry: object, name: str = "") -> Iterator[Entry]:
    """Yield the entries inside ``entry``, which is called ``name``."""
    if isinstance(entry, Tensor) and hasattr(entry, "placements"):
        # of a DTensor there is what the rank that wrote it held; the rest is a value
        part: Any = entry
        yield name, part.to_local()
        placed = ", ".join(map(str, part.placements))
        yield f"{name}{PART}", f"part of {tuple(entry.shape)}, placed {placed}"
        return
    inside = [*_inside(entry)]
    if isinstance(entry, Inert) or not inside:
        yield name or "object" if isinstance(entry, Inert) else name, entry
    for key, child in inside:
        for found in leaves(child, f"{name}.{key}" if name else key):
            # plain values of an object are its own affair
            if not isinstance(entry, Inert) or isinstance(found[1], Tensor | Inert):
                yield found


def _inside(entry: object) -> Iterator[tuple[str, object]]:
    if isinstance(entry, Inert):
        for held in entry.held:
            yield from _inside(held)
    elif isinstance(entry, Mapping):
        yield from ((str(key), value) for key, value in entry.items())
    elif isinstance(entry, list | tuple):
        yield from ((str(place), value) for place, value in enumerate(entry))
