"""Fingerprints of what a run computed, taken outside of timed regions.

Three kinds of rows: ``batch`` (every step: hash of the global batch), ``tensors``
(recorded steps: hash of every gradient before the optimizer and of every parameter
after it, on each rank), and ``buckets`` (where DDP's layout changes).
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.files import open_atomic
from minitrain.sync import SyncTrace

Row = dict[str, Any]
DIGEST_MODULUS = 2**256


def sha256_tensor(tensor: Tensor) -> str:
    """SHA-256 of a tensor's bytes in row-major order, in hex; any dtype and shape."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return hashlib.sha256(flat.view(torch.uint8).numpy().data).hexdigest()


def recorded_steps(num_steps: int, hash_every: int) -> set[int]:
    """The first three steps, every ``hash_every``-th, and the last."""
    return {0, 1, 2, *range(0, num_steps, hash_every), num_steps - 1} & {
        *range(num_steps)
    }


def merge_digests(digests: Iterable[int]) -> str:
    """The hash of a global batch, in hex, from the digests of its ranks' parts.

    A digest is a sum of the samples' SHA-256 modulo 2^256: it does not depend on how
    the samples are cut over ranks, and a sample that is missing or there twice
    changes it.
    """
    return f"{sum(digests) % DIGEST_MODULUS:064x}"


class Recorder:
    """Collects the rows of one rank while it trains, at ``steps``."""

    def __init__(self, model: nn.Module, steps: Iterable[int]) -> None:
        self._model = model
        self._steps = frozenset(steps)
        self._layout: list[Row] = []
        self.rows: list[Row] = []

    def wants(self, step: int) -> bool:
        """Whether ``step`` is a recorded one."""
        return step in self._steps

    def layout(self, step: int, trace: SyncTrace) -> None:
        """Note DDP's buckets where they differ from those of the step before."""
        layout = [
            {"num_bytes": event.num_bytes, "parameters": list(event.parameters)}
            for event in trace.events
        ]
        if layout and layout != self._layout:
            self._layout = layout
            self.rows.append({"kind": "buckets", "step": step, "buckets": layout})

    def gradients(self, step: int) -> None:
        """Hash every gradient; call between synchronisation and optimizer."""
        named = self._model.named_parameters()
        hashes = {n: sha256_tensor(p.grad) for n, p in named if p.grad is not None}
        self.rows.append({"kind": "tensors", "step": step, "gradients": hashes})

    def parameters(self, step: int) -> None:
        """Hash every parameter and buffer; call after the optimizer."""
        self.rows[-1]["parameters"] = {
            name: sha256_tensor(tensor)
            for name, tensor in self._model.state_dict().items()
        }


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Save so that the bytes of the file depend on the tensors' content alone."""
    copies = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    with open_atomic(path, "wb") as file:
        # through a file object: given a path, torch stores the file's name inside
        torch.save(copies, file)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Load what :func:`save_tensors` wrote; never runs code from the file."""
    tensors: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return tensors
