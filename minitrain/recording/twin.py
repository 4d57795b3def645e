"""The twin of a run: the same run from weights that are one rounding unit away."""

import os
from collections.abc import Iterable

import torch
from torch import Tensor

TWIN = "MINITRAIN_TWIN"
MOVED = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def is_twin() -> bool:
    """Return true if this run is to be a twin: MINITRAIN_TWIN=1 in the environment."""
    return os.environ.get(TWIN) == "1"


@torch.no_grad()
def perturb(parameters: Iterable[Tensor]) -> None:
    """Increase floating-point parameters by one unit in the last place, in place."""
    for parameter in parameters:
        # each rank moves its own shard of a sharded one
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        if local.dtype in MOVED:
            up = torch.full((), torch.inf, dtype=local.dtype, device=local.device)
            local.copy_(torch.nextafter(local, up))
