"""The first line of a recording, and which models can have one."""

import os
import sys
from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from minitrain.core.errors import UserError
from minitrain.recording.fingerprint import BINS, digest
from minitrain.recording.format import VERSION, Row
from minitrain.recording.hooks import is_in_parts, parameters_of, tied

TWIN = "MINITRAIN_TWIN"
MOVED = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def rank_and_size() -> tuple[int, int]:
    """Return those of torch.distributed, else of torchrun's environment."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def is_twin() -> bool:
    """Return whether this run starts one unit in the last place away (a twin)."""
    return os.environ.get(TWIN) == "1"


@torch.no_grad()
def perturb(parameters: Iterable[Tensor]) -> None:
    """Move every floating parameter one unit in the last place towards infinity."""
    for parameter in parameters:
        # where ranks hold a part each, each moves its own
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        if local.dtype in MOVED:
            up = torch.full((), torch.inf, dtype=local.dtype, device=local.device)
            local.copy_(torch.nextafter(local, up))


def header_of(inner: nn.Module, every: int) -> Row:
    """Return the first line of a run of a model, as the model is before it."""
    rank, world_size = rank_and_size()
    parameters, pairs = parameters_of(inner), tied(inner)
    header = {
        "kind": "recording",
        "version": VERSION,
        "rank": rank,
        "world_size": world_size,
        "every": every,
        "twin": is_twin(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "device": next(iter(parameters.values())).device.type,
        "bins": BINS,
        "parameters": {
            name: {
                "shape": [*parameter.shape],
                "dtype": str(parameter.dtype).removeprefix("torch."),
                "trained": parameter.requires_grad,
            }
            for name, parameter in parameters.items()
        },
        "start": {name: digest(p) for name, p in parameters.items()},
    }
    return header | ({"tied": pairs} if pairs else {})


def require_whole(inner: nn.Module, parameters: Mapping[str, Tensor]) -> None:
    """Raise UserError if, in the first forward pass, ranks hold parts of parameters
    that none can put together.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return
    if any(isinstance(m, fsdp.FullyShardedDataParallel) for m in inner.modules()):
        raise UserError(
            "record: model is in FullyShardedDataParallel, whose parameters have no "
            "names of their own: use fully_shard"
        )
    parts = any(map(is_in_parts, parameters.values()))
    if isinstance(inner, fsdp.FSDPModule) and not parts:
        raise UserError(
            "record: fully_shard(model) was called after the recorder's start: call it "
            "before"
        )
