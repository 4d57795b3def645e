"""What a forward pass was given, and where the random numbers stand."""

from collections.abc import Sequence
from typing import Any

import torch
from blake3 import blake3
from torch import Tensor

from minitrain.data.cut import bytes_of, content_digest, tensors_of
from minitrain.recording.fingerprint import gathered


def sample_digests(inputs: Any) -> tuple[list[str], str]:
    """16 hex digits for each sample of all tensors in ``inputs``, however nested: for
    each row of those that have as many rows as the first of them. And of all other
    tensors together, such as a mask or a table; empty where there are none.
    """
    tensors = [gathered(t) for t in tensors_of(inputs) if t.dim()]
    if not tensors:
        return [], ""
    batch = [tensor for tensor in tensors if len(tensor) == len(tensors[0])]
    beside = [tensor for tensor in tensors if len(tensor) != len(tensors[0])]
    rows = [_short(row) for row in zip(*batch, strict=True)]
    return rows, _short(beside) if beside else ""


def _short(tensors: Sequence[Tensor]) -> str:
    return f"{content_digest(tensors):064x}"[:16]


def read(inputs: Any) -> tuple[list[str], str, str]:
    """:func:`sample_digests`, and why there are none where that fails: the run is not
    to end by what the recorder cannot read, such as nested tensors.
    """
    try:
        return *sample_digests(inputs), ""
    # whatever a kind of tensor makes of it
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return [], "", reason[:120]


def random_digest(device: torch.device) -> str:
    """16 hex digits of where torch's generators stand, the CPU's and the device's."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    digest = blake3()
    for state in states:
        digest.update(bytes_of(state))
    return digest.hexdigest(length=8)


def mean_loss(told: list[Tensor | float]) -> float | None:
    """Of the losses that were told; None where none was."""
    values = [float(torch.as_tensor(loss).double().mean()) for loss in told]
    return sum(values) / len(values) if values else None
