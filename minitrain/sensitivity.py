"""How far apart training drives two starts that differ in the last bit.

Where training is unstable at its learning rate, rounding grows without bound, and no
tolerance can tell it from a fault. This measures whether it does.
"""

from pathlib import Path

import torch
from torch import nn

from minitrain.hashes import Recorder, Tensors
from minitrain.params import Params
from minitrain.progress import progress
from minitrain.replay import BucketLayout, replay
from minitrain.run import rank_batches, start_model, start_streams
from minitrain.training import make_optimizer, steps_to_train


def nudged_state(params: Params, shards: Path) -> Tensors:
    """Final state of one process whose start is one unit in the last place away.

    ``shards`` is a folder world-1; the steps are those that ``params`` ask for.
    """
    torch.set_num_threads(params.train.threads_per_process)
    batches = rank_batches(params, shards, 0, 1)
    streams = start_streams(params, 1)
    model = start_model(params, 0)
    nudge(model)
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    whole = {"kind": "buckets", "step": 0, "buckets": [{"parameters": names}]}
    num_steps = steps_to_train(params.train, len(batches.order))
    steps = progress(range(num_steps), "sensitivity", total=num_steps)
    recorder = Recorder(model, steps=())
    optimizer = make_optimizer(model, params.train)
    layout = BucketLayout([whole])
    replay(model, [batches], layout, optimizer, steps, recorder, streams)
    return dict(model.state_dict())


def nudge(model: nn.Module) -> None:
    """Move every trained parameter one unit in the last place up."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                up = torch.full_like(parameter, torch.inf)
                parameter.copy_(torch.nextafter(parameter, up))
