"""Random numbers: a seed for each rank, and streams of several ranks in a process."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class RandomState:
    """Where Python's, NumPy's and torch's generators stand."""

    python: Any
    numpy: Any
    torch: Tensor
    cuda: list[Tensor]


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch; give each rank a seed of its own."""
    random.seed(seed)
    # the largest seed of params.yaml is NumPy's largest too, and ranks add theirs
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_state() -> RandomState:
    """Where the generators of this process stand now."""
    return RandomState(
        python=random.getstate(),
        numpy=np.random.get_state(),
        torch=torch.get_rng_state(),
        cuda=torch.cuda.get_rng_state_all(),
    )


def restore_random_state(state: RandomState) -> None:
    """Let the generators go on from ``state``."""
    random.setstate(state.python)
    np.random.set_state(state.numpy)
    torch.set_rng_state(state.torch)
    torch.cuda.set_rng_state_all(state.cuda)


def same_random_state(a: RandomState, b: RandomState) -> bool:
    """Whether nobody drew a number between the two."""
    numpy = all(np.array_equal(x, y) for x, y in zip(a.numpy, b.numpy, strict=True))
    tensors = zip([a.torch, *a.cuda], [b.torch, *b.cuda], strict=True)
    return a.python == b.python and numpy and all(torch.equal(x, y) for x, y in tensors)


def as_plain(state: RandomState) -> dict[str, Any]:
    """``state`` in lists, numbers and tensors, which a file can hold."""
    name, keys, *rest = state.numpy
    return {
        "python": state.python,
        "numpy": [name, keys.tolist(), *rest],
        "torch": state.torch,
        "cuda": state.cuda,
    }


def from_plain(plain: dict[str, Any]) -> RandomState:
    """The other way round."""
    name, keys, *rest = plain["numpy"]
    numpy = (name, np.array(keys, np.uint32), *rest)
    return RandomState(plain["python"], numpy, plain["torch"], plain["cuda"])


@contextmanager
def untouched_random_state() -> Iterator[None]:
    """Whatever is drawn inside, the generators go on as if it had not been."""
    state = random_state()
    try:
        yield
    finally:
        restore_random_state(state)


class Stream:
    """The random numbers of one of several shards that are interleaved in this process.

    Each use (``with stream:``) goes on where the last one stopped; the first where the
    process stood when the stream was made. ``state`` is where it stands.
    """

    def __init__(self) -> None:
        self.state = random_state()

    def __enter__(self) -> None:
        restore_random_state(self.state)

    def __exit__(self, *_: object) -> None:
        self.state = random_state()
