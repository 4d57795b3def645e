"""Actions of all ranks at once, whose results or error all of them get."""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from minitrain.core.errors import UserError

T = TypeVar("T")
MARK = ".seen-by-all."


def everyone(
    action: Callable[[], T], group: dist.ProcessGroup | None = None
) -> list[T]:
    """Call ``action`` on every rank of ``group`` and return all results, by rank.

    An OSError or UserError of one rank is raised on all, so that no rank waits for one
    that gave up. Collective; without a process group there is one rank.
    """
    mine: Any
    try:
        mine = (action(), None)
    except (OSError, UserError) as error:
        mine = (None, error)
    answers = [mine]
    if dist.is_initialized():
        answers = [mine] * dist.get_world_size(group)
        dist.all_gather_object(answers, mine, group=group)
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


def who_sees(folder: Path) -> list[bool]:
    """Return which ranks see ``folder`` of rank 0, and not one of their own host.
    Collective.

    Raises OSError where rank 0 cannot write there.
    """
    # what lies in the same place on another host is none of rank 0's
    mark = folder / f"{MARK}{only_first(lambda: secrets.token_hex(8))}"
    only_first(mark.touch)
    seen = everyone(mark.exists)
    only_first(mark.unlink)
    return seen
