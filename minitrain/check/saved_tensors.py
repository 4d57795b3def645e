"""Tensors that a rank saves to a folder as they come, and its launcher maps.

A pipe would hold the record of a large model three times over: as tensors and as a
message in the rank, and as a message again in the launcher.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from minitrain.core.files import writing

# of a state, one step's end is the next one's start
OF_A_STATE = ("before", "after", "state")
# smaller files are read: a process may have some ten thousand mappings
LEAST_MAPPED_BYTES = 1 << 16


class SavedTensors(dict[str, Tensor]):
    """Take tensors by ``STEP/KIND/NAME`` and save each to a file in ``folder``, equal
    tensors of a model's state once; none is kept in memory.

    Without a ``folder`` nothing is saved. Raises UserError where the disk is full.
    """

    def __init__(self, folder: Path | None) -> None:
        super().__init__()
        self._folder = folder
        if folder is not None:
            folder.mkdir()
        # by the same keys: where each tensor is
        self.files: dict[str, str] = {}
        # by NAME: the file of the newest state
        self._states: dict[str, str] = {}

    def __setitem__(self, key: str, tensor: Tensor) -> None:
        if self._folder is None:
            return
        _, kind, name = key.split("/", 2)
        file = self._states.get(name) if kind in OF_A_STATE else None
        if file is None or not _same_bits(_mapped(file), tensor):
            file = str(self._folder / f"{len(self.files)}.pt")
            with writing(Path(file)):
                # a view would bring along all that it is a view of
                torch.save(tensor.detach().cpu().clone(), file)
        self.files[key] = file
        if kind in OF_A_STATE:
            self._states[name] = file


def mapped(files: Mapping[str, str]) -> dict[str, Tensor]:
    """Map the tensors of ``files``, by name; they stay when the files are removed."""
    tensors = {file: _mapped(file) for file in {*files.values()}}
    return {name: tensors[file] for name, file in files.items()}


def _mapped(file: str) -> Tensor:
    is_large = Path(file).stat().st_size >= LEAST_MAPPED_BYTES
    tensor: Tensor = torch.load(file, mmap=is_large, weights_only=True)
    return tensor


def _same_bits(one: Tensor, other: Tensor) -> bool:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    as_bytes = (t.detach().cpu().contiguous().reshape(-1) for t in (one, other))
    return torch.equal(*(t.view(torch.uint8) for t in as_bytes))
