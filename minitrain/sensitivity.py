"""How far apart training drives two starts that differ in the last bit.

Where training is unstable at its learning rate, rounding grows without bound, and no
tolerance can tell it from a fault. This measures whether it does.
"""

from pathlib import Path

import torch
from torch import nn

from minitrain.hashes import Recorder, Tensors
from minitrain.params import Params
from minitrain.precision import make_precision
from minitrain.progress import progress
from minitrain.replay import BucketLayout, replay
from minitrain.run import optimizer_of, shard_batches, start_model, start_streams
from minitrain.sync.strategies import find_strategy
from minitrain.training import steps_to_train


def nudged_state(params: Params, shards: Path) -> Tensors:
    """Final state of one process whose start is one unit in the last place away.

    ``shards`` is a folder world-1; the steps are those that ``params`` ask for.
    """
    torch.set_num_threads(params.train.threads_per_process)
    batches = shard_batches(params, shards, 1)
    streams = start_streams(params, len(batches))
    model = start_model(params, 0)
    nudge(model)
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    whole = {"kind": "buckets", "step": 0, "buckets": [{"parameters": names}]}
    num_steps = steps_to_train(params.train, len(batches[0].order))
    steps = progress(range(num_steps), "sensitivity", total=num_steps)
    recorder = Recorder(model, steps=())
    replay(
        model,
        batches,
        BucketLayout([whole]),
        optimizer_of(model, params.train),
        steps,
        recorder,
        streams,
        find_strategy(params.train.sync),
        1,
        make_precision(params.train.precision),
    )
    return dict(model.state_dict())


def nudge(model: nn.Module) -> None:
    """Move every trained parameter one unit in the last place up."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                up = torch.full_like(parameter, torch.inf)
                parameter.copy_(torch.nextafter(parameter, up))
