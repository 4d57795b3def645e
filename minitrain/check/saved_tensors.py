"""Tensors that a rank saves to a folder as they come, and its launcher maps.

A pipe would hold the record of a large model three times over: as tensors and as a
message in the rank, and as a message again in the launcher.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

# of a state, one step's end is the next one's start
OF_A_STATE = ("before", "after", "state")


class SavedTensors(dict[str, Tensor]):
    """Tensors by ``STEP/KIND/NAME``, each in a file in ``folder`` from which it is
    mapped; equal tensors of a model's state are saved once.

    Without a ``folder`` nothing is kept.
    """

    def __init__(self, folder: Path | None) -> None:
        super().__init__()
        self._folder = folder
        if folder is not None:
            folder.mkdir()
        # by the same keys: where each tensor is
        self.files: dict[str, str] = {}
        # by NAME: the key of the newest state
        self._states: dict[str, str] = {}

    def __setitem__(self, key: str, tensor: Tensor) -> None:
        if self._folder is None:
            return
        _, kind, name = key.split("/", 2)
        known = self._states.get(name) if kind in OF_A_STATE else None
        if known is not None and _same_bits(self[known], tensor):
            file = self.files[known]
        else:
            file = str(self._folder / f"{len(self.files)}.pt")
            # a view would bring along all that it is a view of
            torch.save(tensor.detach().cpu().clone(), file)
        self.files[key] = file
        super().__setitem__(key, _mapped(file))
        if kind in OF_A_STATE:
            self._states[name] = key


def mapped(files: Mapping[str, str]) -> dict[str, Tensor]:
    """Map the tensors of ``files``, by name; they stay when the files are removed."""
    return {name: _mapped(file) for name, file in files.items()}


def _mapped(file: str) -> Tensor:
    tensor: Tensor = torch.load(file, mmap=True, weights_only=True)
    return tensor


def _same_bits(one: Tensor, other: Tensor) -> bool:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    as_bytes = (t.detach().cpu().contiguous().reshape(-1) for t in (one, other))
    return torch.equal(*(t.view(torch.uint8) for t in as_bytes))
