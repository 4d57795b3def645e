"""Digests of the inputs of a forward pass, and of torch's random generators."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from blake3 import blake3
from torch import Tensor, nn

from minitrain.data.cut import bytes_of, content_digest, tensors_of
from minitrain.recording.fingerprint import gathered, stays_sparse

# names by which models take what is to be learned
LABELS = ("labels", "label", "targets", "target")


def sample_digests(inputs: Any) -> tuple[list[str], str, list[list[str]]]:
    """Return digests, of 16 hex digits each, of all tensors in ``inputs`` at any depth.

    First, one for each sample: a row of all tensors with as many rows as the first one.
    Second, one for all other tensors, such as a table; "" if there are none. Third, for
    each sample that is a token sequence, two: with one element of padding, and none.
    """
    given = [t for t in tensors_of(inputs) if t.dim()]
    if any(map(stays_sparse, given)):
        raise ValueError("a sparse tensor that is too large to be made dense")
    tensors = [gathered(t) for t in given]
    if not tensors:
        return [], "", []
    batch = [tensor for tensor in tensors if len(tensor) == len(tensors[0])]
    beside = [tensor for tensor in tensors if len(tensor) != len(tensors[0])]
    rows = [_short(row) for row in zip(*batch, strict=True)]
    return rows, _short(beside) if beside else "", _without_padding(batch)


def _without_padding(batch: Sequence[Tensor]) -> list[list[str]]:
    # return for each row its digest with one element of the padding, and with none.
    # Padding is a run of equal elements at the end of all tensors that are as long as
    # the first; a row that has none loses its last element
    first = batch[0]
    if first.is_floating_point() or first.is_complex() or first.dim() != 2:
        return []
    length = first.shape[1]
    are_long = [t.dim() > 1 and t.shape[1] == length for t in batch]
    pairs = [*zip(batch, are_long, strict=True)]
    runs = [_run_at_the_end(t) for t, is_long in pairs if is_long]
    padded: list[int] = torch.stack(runs).amin(0).tolist() if length else []
    return [
        [
            _short([t[r][:kept] if is_long else t[r] for t, is_long in pairs])
            for kept in (length - run + 1, length - run)
        ]
        for r, run in enumerate(padded)
    ]


def _run_at_the_end(rows: Tensor) -> Tensor:
    # count how many last elements of each row (B, L, ...) are equal to the last one
    same = (rows == rows[:, -1:]).unsqueeze(-1).flatten(2).all(2)
    return same.flip(1).int().cumprod(1).sum(1)


def _without_labels(inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        kept = {k: v for k, v in inputs.items() if k not in LABELS}
        return {key: _without_labels(value) for key, value in kept.items()}
    return inputs


def _short(tensors: Sequence[Tensor]) -> str:
    return f"{content_digest(tensors):064x}"[:16]


# with gradients it would keep tensors for a backward pass
@torch.no_grad()
def read(module: nn.Module, args: Any, options: Any) -> dict[str, Any]:
    """Return what is recorded of the arguments of a forward pass: the three results of
    :func:`sample_digests` (``inputs``, ``beside``, ``unpadded``); ``unlabelled``, the
    first of these without arguments named like labels (empty if there are none);
    ``not_finite``, true if a number is NaN or infinite; ``unread``, the error if the
    inputs could not be read, else "".
    """
    found: dict[str, Any] = {"inputs": [], "beside": "", "unpadded": [], "unread": ""}
    found |= {"not_finite": False, "unlabelled": []}
    given = args, options
    try:
        digests = sample_digests(given)
        found |= zip(("inputs", "beside", "unpadded"), digests, strict=True)
        floats = [t for t in tensors_of(given) if t.is_floating_point()]
        found["not_finite"] = not all(bool(t.isfinite().all()) for t in floats)
        bound = inspect.signature(module.forward).bind(*args, **options).arguments
        rest = _without_labels(bound)
        if len([*tensors_of(rest)]) < len([*tensors_of(bound)]):
            found["unlabelled"] = sample_digests(rest)[0]
    # any error: tensors that cannot be read, such as nested ones, must not end the run
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        found["unread"] = "" if found["inputs"] else text
    return found


def random_digest(device: torch.device) -> str:
    """Return a hash of the states of torch's generators, CPU and GPU: 16 hex digits."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    digest = blake3()
    for state in states:
        digest.update(bytes_of(state))
    return digest.hexdigest(length=8)
