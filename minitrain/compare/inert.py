"""Stand-ins for the classes that a checkpoint names, so that none of their code runs.

Checkpoints of training scripts hold objects (``argparse.Namespace``, enums, NumPy
arrays) next to the tensors. PyTorch's restricted unpickler reads such a file where each
unknown class is replaced by an empty one that only keeps what it was given.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch


class Inert:
    """An object of a class that was not imported; ``held`` is its state."""

    path = ""

    def __new__(cls, *arguments: Any) -> "Inert":
        made = object.__new__(cls)
        made.held = [*arguments]
        return made

    def __init__(self, *arguments: Any) -> None:
        self.held: list[Any]

    def __setstate__(self, state: Any) -> None:
        self.held.append(state)


def load_inert(path: Path, **options: Any) -> object:
    """Read a zip file of ``torch.save`` with stand-ins for its unknown classes."""
    names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    known = [(type(name, (Inert,), {"path": name}), name) for name in names]
    with torch.serialization.safe_globals([*known]):
        return torch.load(path, weights_only=True, **options)


def parts_of(entry: object) -> Iterator[tuple[str, object]]:
    """What is inside an entry, by its name there; nothing for a plain value."""
    if isinstance(entry, Inert):
        for held in entry.held:
            yield from parts_of(held)
    elif isinstance(entry, dict):
        yield from ((str(key), value) for key, value in entry.items())
    elif isinstance(entry, list | tuple):
        yield from ((str(place), value) for place, value in enumerate(entry))
