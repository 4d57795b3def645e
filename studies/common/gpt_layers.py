"""Operation counts of MiniGPT's layers, and the order in which gradients are ready.

Only numbers, so that a prediction does not need torch; tests compare them with the
model and with the buckets that DDP made.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from least_squares import Array
from setting import Setting

FLOAT_BYTES = 4
MIB = 2**20
# torch's defaults in MiB: the first bucket, and all others
DEFAULT_CAPS_MB = (1.0, 25.0)


@dataclass(frozen=True)
class Layer:
    """Costs of a layer: ``parameters`` are the elements of each, in the order of their
    gradients. Per token of the forward pass: ``flops`` (2 per multiply-add) and
    ``elements`` written; per pass: ``calls`` of operators.
    """

    parameters: tuple[float, ...]
    flops: float
    elements: float
    calls: int


class Bucket(NamedTuple):
    """Bytes of a gradient bucket, and the index of the layer in the backward pass after
    which it is complete.
    """

    num_bytes: float
    after: int


def gpt_layers(
    n_layer: int, n_embd: float, block_size: int, vocab_size: int
) -> list[Layer]:
    """Return the layers of MiniGPT in backward order.

    Flops count the matrix products and attention over the whole block (Kaplan et al.
    2020, arXiv:2001.08361, section 2.1; a causal mask halves attention only if the
    kernel skips masked elements). ``n_embd`` may be fractional, as at a crossover of
    two curves.
    """
    d, context = n_embd, block_size
    norm = Layer((d, d), 0, d, 1)
    block = [
        # mlp.2, and the residual addition
        Layer((d, 4 * d * d), 8 * d * d, 2 * d, 2),
        # mlp.0 and GELU
        Layer((4 * d, 4 * d * d), 8 * d * d, 8 * d, 2),
        norm,
        # attention.proj, the copy before it and the residual addition
        Layer((d, d * d), 2 * d * d, 3 * d, 3),
        Layer((), 4 * context * d, d, 1),
        # attention.qkv
        Layer((3 * d * d,), 6 * d * d, 3 * d, 1),
        norm,
    ]
    # logits, softmax and loss; last, position and token embedding
    head = Layer((vocab_size * d,), 2 * vocab_size * d, 2 * vocab_size, 4)
    embedding = Layer((context * d, vocab_size * d), 0, 3 * d, 3)
    return [head, norm, *block * n_layer, embedding]


def layers_of(setting: Setting) -> list[Layer]:
    """Return the layers of a setting's model, in backward order."""
    sizes = setting.n_layer, setting.n_embd, setting.block_size, setting.vocab_size
    return gpt_layers(*sizes)


def features(layers: Sequence[Layer], tokens: float) -> Array:
    """Return flops, elements, parameters and calls of a forward pass, shape (layers,
    4). Only the first two grow with the batch.

    The backward pass is proportional to them, with other factors.
    """
    return np.array(
        [
            [x.flops * tokens, x.elements * tokens, sum(x.parameters), x.calls]
            for x in layers
        ]
    )


def num_parameters(layers: Sequence[Layer]) -> float:
    """Return the number of elements of all parameters."""
    return sum(sum(layer.parameters) for layer in layers)


def num_tensors(layers: Sequence[Layer]) -> int:
    """Return the number of parameter tensors."""
    return sum(len(layer.parameters) for layer in layers)


def buckets(layers: Sequence[Layer], cap_mb: float | None) -> list[Bucket]:
    """Return DDP's buckets after its first step, in the order of their reduction. A
    bucket takes whole parameters until it has at least its cap in MiB; None is torch's
    default, with a smaller first bucket.
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
