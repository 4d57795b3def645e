"""A tensor that lies on disk until somebody looks at it."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Unread:
    """``read`` gives the tensor."""

    read: Callable[[], Tensor]


# a name, and a Tensor, Unread or a plain value
Entry = tuple[str, object]
