"""Rows of a recording, made from random tensors."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from minitrain.recording.fingerprint import digest, fingerprint, sketch
from minitrain.recording.format import VERSION

SHAPES = {"embedding": (40, 8), "layer.weight": (8, 8), "layer.bias": (8,)}
RATE = 0.1
Row = dict[str, Any]
Tensors = dict[str, Tensor]


def random_tensors(seed: int) -> Tensors:
    made = torch.Generator().manual_seed(seed)
    return {name: torch.randn(size, generator=made) for name, size in SHAPES.items()}


def mean(many: Sequence[Tensors]) -> Tensors:
    return {name: sum(one[name] for one in many) / len(many) for name in SHAPES}


def own_of(step: int, world_size: int) -> list[Tensors]:
    """Each rank's own gradients."""
    return [random_tensors(100 + 10 * step + rank) for rank in range(world_size)]


def rows_of(
    step: int,
    own: Sequence[Tensors],
    gradients: Sequence[Tensors] | None = None,
    /,
    **changes: Any,
) -> list[Row]:
    """The rows of one step: ranks with their ``own`` gradients got ``gradients`` (None:
    the mean). ``changes`` go into all rows; a callable is asked by rank.
    """
    got = gradients or [mean(own)] * len(own)
    rows = [
        _row(step, rank, *pair) for rank, pair in enumerate(zip(own, got, strict=True))
    ]
    return [with_changes(row, rank, changes) for rank, row in enumerate(rows)]


def with_changes(row: Row, rank: int, changes: Mapping[str, Any]) -> Row:
    return row | {
        name: value(rank) if callable(value) else value
        for name, value in changes.items()
    }


# fields of a correct step that few tests change
PLAIN: Row = {
    "kind": "step",
    "optimizer": 0,
    "beside": [],
    "unread": "",
    "loss": None,
    "groups": [],
    "draws": False,
    "random": "0" * 16,
    "wrapper": "DistributedDataParallel",
    "wrapper_id": 1,
    "synced": True,
    "syncs": [True],
    "broadcast_buffers": None,
    "group": 2,
    "without_gradient": [],
    "not_held": [],
}


def _row(step: int, rank: int, own: Tensors, gradients: Tensors) -> Row:
    before = random_tensors(1000 + step)
    after = {name: before[name] - RATE * gradients[name] for name in SHAPES}
    return PLAIN | {
        "step": step,
        "forwards": step + 1,
        "inputs": [[f"{step:08}{rank:04}{number:04}" for number in range(4)]],
        "lr": [RATE],
        "random": f"{rank:016}",
        "own": {name: sketch(tensor) for name, tensor in own.items()},
        "gradients": {name: fingerprint(t) for name, t in gradients.items()},
        "parameters": {name: fingerprint(t) for name, t in after.items()},
        "before": {name: digest(tensor) for name, tensor in before.items()},
        "buffers": {"running_mean": fingerprint(torch.full((4,), float(step)))},
        "moments": dict.fromkeys(SHAPES, f"{step:032}"),
    }


def headers(world_size: int, **changes: Any) -> list[Row]:
    start = {name: digest(tensor) for name, tensor in random_tensors(1000).items()}
    row = {
        "kind": "recording",
        "version": VERSION,
        "world_size": world_size,
        "every": 1,
        "twin": False,
        "torch": "2.13.0+cpu",
        "threads": 1,
        "device": "cpu",
        "bins": 8,
        "parameters": {
            name: {"shape": [*size], "dtype": "float32", "trained": True}
            for name, size in SHAPES.items()
        },
        "start": start,
    }
    return [
        with_changes(row | {"rank": rank}, rank, changes) for rank in range(world_size)
    ]


def on_rank(rank: int, value: Any, usual: Any) -> Callable[[int], Any]:
    """``value`` on ``rank``, and elsewhere as it is."""
    return lambda r: value if r == rank else usual
