"""Walk through one data-parallel step with numbers to check by hand.

Four ranks, one weight, no processes: what each rank reads, its gradient, the average,
the weight after the step, and what two classic mistakes would make of it. Order, cut,
sum and optimizer are those of the real runs.
"""

import argparse
from typing import Any

from minitrain.cli.answer import Answer

EXAMPLES = {
    "to read": "minitrain explain",
    "the same numbers, for a program": "minitrain explain --json",
}


def answer(options: argparse.Namespace) -> Answer:
    """Take the walk; it is ok if ranks and one process end at the same weight."""
    # torch takes seconds to import: not for --help
    from minitrain.cli.walk import walk

    taken = walk()
    ends = {taken["one_process_after"], *(rank["after"] for rank in taken["ranks"])}
    return Answer(len(ends) == 1, taken, in_words(taken))


def in_words(taken: dict[str, Any]) -> str:
    """Return the walk as text, a paragraph for each thing that happens."""
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
