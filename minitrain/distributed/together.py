"""What all ranks do at once, and then know of each other: results, or an error."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from minitrain.core.errors import UserError

T = TypeVar("T")


def everyone(action: Callable[[], T]) -> list[T]:
    """Call ``action`` on every rank -> what each got, by rank, on all of them.

    An OSError or UserError of one is raised on all, so that nobody waits for a rank
    that gave up. Collective; without a process group there is one rank.
    """
    mine: Any
    try:
        mine = (action(), None)
    except (OSError, UserError) as error:
        mine = (None, error)
    answers = [mine]
    if dist.is_initialized():
        answers = [mine] * dist.get_world_size()
        dist.all_gather_object(answers, mine)
    for _, failure in answers:
        if failure is not None:
            raise failure
    return [result for result, _ in answers]


def only_first(action: Callable[[], T]) -> T:
    """Call ``action`` on rank 0 alone -> what it got, on all ranks. Collective, as
    :func:`everyone` is.
    """
    rank = dist.get_rank() if dist.is_initialized() else 0
    first: Any = everyone(action if rank == 0 else lambda: None)[0]
    result: T = first
    return result
