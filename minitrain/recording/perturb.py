"""A twin: the same run from a start that is one unit in the last place away."""

import os
from collections.abc import Iterable

import torch
from torch import Tensor

VARIABLE = "MINITRAIN_TWIN"
MOVED = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def is_twin() -> bool:
    """Whether this process is to run as a twin."""
    return os.environ.get(VARIABLE) == "1"


@torch.no_grad()
def perturb(parameters: Iterable[Tensor]) -> None:
    """Move every floating parameter one unit in the last place towards infinity."""
    for parameter in parameters:
        # where ranks hold a part each, each moves its own
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        if local.dtype in MOVED:
            up = torch.full((), torch.inf, dtype=local.dtype, device=local.device)
            local.copy_(torch.nextafter(local, up))
