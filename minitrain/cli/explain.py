"""Walk through one data-parallel step with numbers to check by hand.

Four ranks, one weight, no processes: what each rank reads, its gradient, the average,
the weight after the step, and what two classic mistakes would make of it. Order, cut
and sum are those of the real runs.
"""

import argparse
from typing import TYPE_CHECKING, Any

from minitrain.cli.command import Answer

# torch takes seconds to import, so functions import it: not for --help
if TYPE_CHECKING:
    from torch import Tensor

EXAMPLES = {
    "to read": "minitrain explain",
    "the same numbers, for a program": "minitrain explain --json",
}
WORLD_SIZE = 4
NUM_SAMPLES = 16
GLOBAL_BATCH_SIZE = 8
LEARNING_RATE = 0.001
START = 1.0


def answer(options: argparse.Namespace) -> Answer:
    """Run the example step; ``ok`` if ranks and one process get the same weight."""
    taken = walk()
    ends = {taken["one_process_after"], *(rank["after"] for rank in taken["ranks"])}
    return Answer(len(ends) == 1, taken, in_words(taken))


def walk() -> dict[str, Any]:
    """Compute one training step of four simulated ranks, and of one process; return all
    intermediate numbers by name. Two classic mistakes are included: ``alone``, the
    weight of a rank without communication, and ``summed_gradient``, ``summed_after``,
    the gradient and weight if gradients are summed, not averaged.
    """
    from minitrain.comm.ring import ring_sum
    from minitrain.data.order import GlobalOrder, rank_part

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
            "after": _after_step(average),
            "alone": _after_step(gradients[rank]),
        }
        for rank in range(WORLD_SIZE)
    ]
    return {
        "batches": batches,
        "next_epoch": next_epoch,
        "ranks": ranks,
        "average": average.item(),
        "one_process_gradient": whole.item(),
        "one_process_after": _after_step(whole),
        "summed_gradient": summed.item(),
        "summed_after": _after_step(summed),
    }


def _gradient(samples: list[int]) -> "Tensor":
    import torch

    weight = torch.full((1,), START, requires_grad=True)
    x = torch.tensor(samples, dtype=torch.float32) + 1
    torch.nn.functional.mse_loss(weight * x, 2 * x).backward()
    assert weight.grad is not None
    return weight.grad


def _after_step(gradient: "Tensor") -> float:
    return START - LEARNING_RATE * gradient.item()


def in_words(taken: dict[str, Any]) -> str:
    """Return the numbers of :func:`walk` as text, a paragraph for each phase."""
    ranks, average = taken["ranks"], taken["average"]
    first, second = map(_ids, taken["batches"])
    read = "\n".join(
        f"  rank {rank['rank']} owns {_ids(rank['shard']):<12} "
        f"and reads {_ids(rank['samples'])} in step 0"
        for rank in ranks
    )
    own = "\n".join(
        f"  rank {rank['rank']}: {_terms(rank['samples']):<21} = {rank['gradient']:g}"
        for rank in ranks
    )
    terms = " + ".join(f"({rank['scaled']:g})" for rank in ranks)
    alone = ", ".join(f"{rank['alone']:.3f}" for rank in ranks)
    return f"""\
The model is y = weight * x with weight 1; {len(ranks)} ranks hold it.
Sample i is x = i + 1, its answer is 2 x, its loss (x - 2 x)^2,
and so its gradient is -2 x^2.

1. A batch is cut. Sample i belongs to rank i % 4, whatever the batch.
  step 0 takes samples {first}, step 1 {second}
{read}
  the next epoch shuffles: its step 0 takes {_ids(taken["next_epoch"][0])}

2. Each rank computes the mean gradient of its own samples.
{own}

3. All-reduce: each multiplies by 1/4, and every rank receives the sum.
  {terms} = {average:g}

4. Each rank takes the same step with learning rate 0.001.
  1 - 0.001 * ({average:g}) = {ranks[0]["after"]:.3f} on every rank

5. One process that takes the whole batch arrives there too.
  gradient {taken["one_process_gradient"]:g}, weight {taken["one_process_after"]:.3f}

What goes wrong in silence:
  no all-reduce: the ranks diverge, with weights {alone}
  sum for mean: gradient {taken["summed_gradient"]:g}, weight \
{taken["summed_after"]:.3f} on every rank,
  so comparing the ranks with each other finds nothing"""


def _ids(samples: list[int]) -> str:
    return " ".join(map(str, samples))


def _terms(samples: list[int]) -> str:
    squares = " + ".join(f"{sample + 1}^2" for sample in samples)
    return f"-2 ({squares}) / {len(samples)}"
