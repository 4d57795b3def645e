"""Collective calls of Python functions: all ranks get the results, or the error."""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import torch.distributed as dist

from minitrain.core.errors import UserError

T = TypeVar("T")
MARK = ".seen-by-all."


def everyone(
    action: Callable[[], T], group: dist.ProcessGroup | None = None
) -> list[T]:
    """Call ``action`` on every rank of ``group`` and return all results, by rank.

    An OSError or UserError of one rank is raised on all ranks, so that none waits for
    the failed rank. Results are pickled. Collective; one rank if there is no group.
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
    """Call ``action`` on rank 0 and return its result on all ranks. Collective; it
    raises the same errors as :func:`everyone`.
    """
    rank = dist.get_rank() if dist.is_initialized() else 0
    return cast(T, everyone(action if rank == 0 else lambda: None)[0])


def who_sees(folder: Path) -> list[bool]:
    """Return a bool per rank: True if the rank sees rank 0's ``folder``, because it is
    on the same host or a shared file system. Collective.

    Raises OSError if rank 0 cannot write to ``folder``.
    """
    # another host may have a folder of this name
    mark = folder / f"{MARK}{only_first(lambda: secrets.token_hex(8))}"
    only_first(mark.touch)
    seen = everyone(mark.exists)
    only_first(mark.unlink)
    return seen
