"""State that a forward pass may change besides gradients: generators and buffers."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from minitrain.sync.strategy import copy_buffers, load_buffers

# state of Python's, NumPy's and torch's generators, in types of a checkpoint
RandomState = dict[str, Any]


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch. Callers pass a different seed on each rank."""
    random.seed(seed)
    # with the rank added, a seed may exceed NumPy's largest
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_state() -> RandomState:
    """Return the state of the generators of this process, also of its GPUs."""
    state: Any = np.random.get_state()
    name, keys, *rest = state
    return {
        "python": random.getstate(),
        "numpy": [name, torch.from_numpy(keys.view(np.int32)), *rest],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all(),
    }


def restore_random_state(state: RandomState) -> None:
    """Restore the generators from ``state``."""
    name, keys, *rest = state["numpy"]
    random.setstate(state["python"])
    np.random.set_state((name, keys.numpy().view(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    torch.cuda.set_rng_state_all(state["cuda"])


def same_random_state(a: RandomState, b: RandomState) -> bool:
    """Return whether two states are equal: no number was drawn between them."""

    def plain(state: RandomState) -> list[Any]:
        parts = state["python"], *state["numpy"], state["torch"], *state["cuda"]
        return [one.tolist() if isinstance(one, Tensor) else one for one in parts]

    return plain(a) == plain(b)


@contextmanager
def untouched_random_state() -> Iterator[None]:
    """Context manager: restore Python's, NumPy's and torch's generators at its end."""
    state = random_state()
    try:
        yield
    finally:
        restore_random_state(state)


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Context manager: restore generators and ``model``'s buffers, also on an error."""
    saved = copy_buffers(model)
    try:
        with untouched_random_state():
            yield
    finally:
        load_buffers(model, saved)


class Stream:
    """Context manager: random numbers of one of several shards in this process. They
    start from the current generators, and continue in each further ``with stream:``.
    """

    def __init__(self) -> None:
        self.state = random_state()

    def __enter__(self) -> None:
        restore_random_state(self.state)

    def __exit__(self, *_: object) -> None:
        self.state = random_state()
