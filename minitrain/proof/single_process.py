"""One process that computes whole batches: the measure of all runs.

It computes with the replay's loop, and not with that of the ranks: what it shares with
them is the model, the data and the optimizer. Where training is unstable at its
learning rate, rounding grows without bound, and no tolerance can tell it from a fault.
From a start that differs in the last bit, the same process measures whether it does.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from minitrain.proof.evidence import Evidence, evidence_of
from minitrain.proof.replay import replay
from minitrain.train.checkpoint import Checkpoints
from minitrain.train.config import RunConfig, whole_batches


def run_one_process(
    config: RunConfig,
    most_steps: int | None = None,
    *,
    show: str = "",
    checkpoints: Checkpoints | None = None,
) -> Evidence:
    """Train in this process on whole batches; ``most_steps`` ends it early, ``show``
    names a progress bar, and where there are ``checkpoints`` it goes on from the
    newest. Raises UserError for a loss that is not finite.
    """
    steps = min(config.steps, most_steps or config.steps)
    alone = whole_batches(replace(config, steps=steps))
    start = dict(alone.start_model(0).state_dict())
    # the gradients of the first step; the early state comes along
    done = replay(alone, [], 1, show=show, sampled=[0], checkpoints=checkpoints)
    return evidence_of(done.results, [done.state], start=start)


def run_twin(
    config: RunConfig, most_steps: int | None = None, *, show: str = ""
) -> Evidence:
    """The same from a start one ULP (unit in the last place) away."""
    nudged = replace(config, factory=partial(_nudged, config.factory))
    return run_one_process(nudged, most_steps, show=show)


def _nudged(factory: Callable[[], nn.Module]) -> nn.Module:
    model = factory()
    nudge(model)
    return model


def nudge(model: nn.Module) -> None:
    """Move every trained parameter one unit in the last place up."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                up = torch.full_like(parameter, torch.inf)
                parameter.copy_(torch.nextafter(parameter, up))
