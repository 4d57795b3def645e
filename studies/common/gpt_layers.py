"""What the layers of MiniGPT compute, and in which order their gradients are there.

Numbers alone, so that a prediction needs no torch; tests hold them against the model
itself and against the buckets that DDP made.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from least_squares import Array
from setting import Setting

FLOAT_BYTES = 4
MIB = 2**20
# torch's default: the first bucket, and all others
DEFAULT_CAPS_MB = (1.0, 25.0)


@dataclass(frozen=True)
class Layer:
    """``parameters``: elements of each, as their gradients come. For one token of the
    forward pass: ``flops`` (2 a multiplication and addition) and ``elements`` that are
    written; for one pass ``calls`` of operators.
    """

    parameters: tuple[float, ...]
    flops: float
    elements: float
    calls: int


class Bucket(NamedTuple):
    """Bytes of gradients that are reduced together, and the layer (by its place in the
    backward pass) after which all of them are there.
    """

    num_bytes: float
    after: int


def gpt_layers(
    n_layer: int, n_embd: float, block_size: int, vocab_size: int
) -> list[Layer]:
    """The layers of MiniGPT as the backward pass goes through them.

    The flops are those of the matrix products, and of attention over the whole block
    (Kaplan et al. 2020, arXiv:2001.08361, section 2.1, where a causal mask halves them
    only if the kernel leaves out what it hides). ``n_embd`` need not be whole: where
    two curves cross, it is not.
    """
    d, context = n_embd, block_size
    norm = Layer((d, d), 0, d, 1)
    block = [
        # mlp.2, and the sum with what went around it
        Layer((d, 4 * d * d), 8 * d * d, 2 * d, 2),
        # mlp.0 and GELU
        Layer((4 * d, 4 * d * d), 8 * d * d, 8 * d, 2),
        norm,
        # attention.proj, the copy before it and the sum after it
        Layer((d, d * d), 2 * d * d, 3 * d, 3),
        Layer((), 4 * context * d, d, 1),
        # attention.qkv
        Layer((3 * d * d,), 6 * d * d, 3 * d, 1),
        norm,
    ]
    # logits, their softmax and the loss; at the other end position and token embedding
    head = Layer((vocab_size * d,), 2 * vocab_size * d, 2 * vocab_size, 4)
    embedding = Layer((context * d, vocab_size * d), 0, 3 * d, 3)
    return [head, norm, *block * n_layer, embedding]


def layers_of(setting: Setting) -> list[Layer]:
    """Those of the model, as backward goes through them."""
    sizes = setting.n_layer, setting.n_embd, setting.block_size, setting.vocab_size
    return gpt_layers(*sizes)


def features(layers: Sequence[Layer], tokens: float) -> Array:
    """Flops, elements, parameters and calls of a forward pass: a row for each layer,
    (layers, 4). Only the first two grow with the batch.

    What a backward pass takes is proportional to them too, with other factors.
    """
    return np.array(
        [
            [x.flops * tokens, x.elements * tokens, sum(x.parameters), x.calls]
            for x in layers
        ]
    )


def num_parameters(layers: Sequence[Layer]) -> float:
    """Elements of all parameters together."""
    return sum(sum(layer.parameters) for layer in layers)


def num_tensors(layers: Sequence[Layer]) -> int:
    """Parameters, each counted once, whatever its size."""
    return sum(len(layer.parameters) for layer in layers)


def buckets(layers: Sequence[Layer], cap_mb: float | None) -> list[Bucket]:
    """The buckets of DDP after its first step, in the order in which they are handed
    over. A bucket takes whole parameters until it has at least its cap in MiB; None is
    torch's default, whose first bucket is smaller.
    """
    first, other = DEFAULT_CAPS_MB if cap_mb is None else (cap_mb, cap_mb)
    found: list[Bucket] = []
    held = 0.0
    for place, layer in enumerate(layers):
        for elements in layer.parameters:
            held += elements * FLOAT_BYTES
            if held >= (other if found else first) * MIB:
                found.append(Bucket(held, place))
                held = 0.0
    return [*found, Bucket(held, len(layers) - 1)] if held else found
