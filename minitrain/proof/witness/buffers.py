"""Buffers in which a forward pass remembers its samples, and what the loss makes of it.

A counter, or the vectors of a spectral norm, change alike on all ranks. A queue of
samples, or a moving average of them, is another on each rank, and several ranks train
otherwise than one process where the loss depends on it.
"""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from minitrain.proof.witness.mean import CLOSE, FINE
from minitrain.proof.witness.passes import Computer, failure
from minitrain.proof.witness.record import Record, Rung, Tensors, rung

SHOWN = 3


def buffers_rung(computer: Computer, record: Record) -> Rung | None:
    """Compare the buffers that two ranks leave after a pass from one state, and the
    loss and gradient of one part from each; None where no buffer may change.
    """
    names = _own_buffers(computer.own)
    step = record.steps()[-1]
    state = record.of(step, "before")
    parts = [group[0] for group in computer.groups_of(step) if group]
    if not names or len(parts) < 2:
        return None
    try:
        ends = [_after(computer, state, part, names) for part in parts[:2]]
        apart = [name for name in names if not torch.equal(*(e[name] for e in ends))]
        if not apart:
            return rung(FINE, "each rank's forward pass leaves the same buffers")
        one, other = (
            computer.exact({**state, **end}, [[parts[0]]], False, steady=True)
            for end in ends
        )
    except Exception as error:
        return rung("not run", failure(error))
    named = f"{', '.join(apart[:SHOWN])}{', ...' if apart[SHOWN:] else ''}"
    gap = other.far_from(one)
    if gap <= CLOSE[computer.type]:
        return rung(FINE, f"the loss does not depend on {named}", gap)
    why = f"the loss depends on {named}, which each rank's samples change"
    return rung("not run", why, gap)


def _own_buffers(model: nn.Module) -> list[str]:
    kept = model.state_dict().keys()
    # not the statistics of batch norm
    statistics = {
        id(getattr(module, name))
        for module in model.modules()
        if isinstance(module, _BatchNorm)
        for name in ("running_mean", "running_var", "num_batches_tracked")
    }
    named = model.named_buffers()
    return [n for n, buffer in named if n in kept and id(buffer) not in statistics]


def _after(
    computer: Computer, state: Tensors, part: object, names: list[str]
) -> Tensors:
    computer.exact(state, [[part]], evaluate=False, steady=True)
    left: dict[str, Tensor] = dict(computer.fine.named_buffers())
    return {name: left[name].detach().clone() for name in names}
