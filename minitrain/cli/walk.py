"""Data parallelism by hand: four ranks in one process, one weight, whole numbers.

The model is y = weight * x. Sample i is x = i + 1 with the answer 2 x, so at weight 1 a
sample's gradient is that of (x - 2 x)^2: minus 2 x^2. Order, cut, loss weights, sum and
optimizer are those of the real runs.
"""

from typing import Any

import torch
from torch import Tensor, nn

from minitrain.comm.ring import ring_sum
from minitrain.data.order import GlobalOrder, rank_part

WORLD_SIZE = 4
NUM_SAMPLES = 16
GLOBAL_BATCH_SIZE = 8
LEARNING_RATE = 0.001
START = 1.0


def walk() -> dict[str, Any]:
    """Take the first step of the first epoch, of four ranks and of one process.

    ``alone`` is the weight of a rank that did not communicate, ``summed_...`` belong to
    gradients that were added and not averaged: two classic mistakes.
    """
    order = GlobalOrder(NUM_SAMPLES, GLOBAL_BATCH_SIZE, seed=0)
    batches = [order.batch(step).tolist() for step in range(len(order))]
    batch = order.batch(0)
    order.set_epoch(1)
    next_epoch = [order.batch(step).tolist() for step in range(len(order))]

    cuts = [rank_part(batch, rank, WORLD_SIZE).tolist() for rank in range(WORLD_SIZE)]
    gradients = [_gradient(samples) for samples in cuts]
    scaled = [gradient / WORLD_SIZE for gradient in gradients]
    average, summed = ring_sum(scaled), ring_sum(gradients)
    whole = _gradient(batches[0])
    ranks = [
        {
            "rank": rank,
            "shard": list(range(rank, NUM_SAMPLES, WORLD_SIZE)),
            "samples": cuts[rank],
            "gradient": gradients[rank].item(),
            "scaled": scaled[rank].item(),
            "after": _stepped(average),
            "alone": _stepped(gradients[rank]),
        }
        for rank in range(WORLD_SIZE)
    ]
    return {
        "batches": batches,
        "next_epoch": next_epoch,
        "ranks": ranks,
        "average": average.item(),
        "one_process_gradient": whole.item(),
        "one_process_after": _stepped(whole),
        "summed_gradient": summed.item(),
        "summed_after": _stepped(summed),
    }


def _model() -> nn.Linear:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, START)
    return model


def _gradient(samples: list[int]) -> Tensor:
    model = _model()
    x = torch.tensor(samples, dtype=torch.float32)[:, None] + 1
    nn.functional.mse_loss(model(x), 2 * x).backward()
    assert model.weight.grad is not None
    return model.weight.grad.flatten()


def _stepped(gradient: Tensor) -> float:
    model = _model()
    model.weight.grad = gradient.view_as(model.weight)
    torch.optim.SGD(model.parameters(), lr=LEARNING_RATE).step()
    return model.weight.item()
