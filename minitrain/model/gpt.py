"""MiniGPT: a small pre-norm decoder-only transformer.

Follows the convention of Hugging Face causal language models: ``model(input_ids=...,
labels=...)`` takes two long tensors of shape (B, T). Labels are the ids with padding as
-100; the model shifts them. ``loss`` is the mean over the real targets.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from minitrain.core.params import Model


@dataclass
class CausalOutput:
    """Output of the model: mean cross-entropy (0-dim), logits (B, T, vocab_size)."""

    loss: Tensor
    logits: Tensor


class Attention(nn.Module):
    """Causal multi-head self-attention without bias on queries, keys and values.

    A bias on the keys would have a true gradient of zero (softmax ignores a constant
    shift), so AdamW would amplify its rounding noise to full-sized steps.
    """

    def __init__(self, n_embd: int, n_head: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.qkv = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        heads = self.qkv(x).view(batch, time, 3, self.n_head, width // self.n_head)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(batch, time, width))


class Block(nn.Module):
    """Attention and a GELU feed-forward layer, each with a pre-layer norm."""

    def __init__(self, n_embd: int, n_head: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(n_embd)
        self.attention = Attention(n_embd, n_head)
        self.norm2 = nn.LayerNorm(n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class MiniGPT(nn.Module):
    """Decoder-only language model over sequences of up to ``block_size`` tokens.
    Weights start as in GPT-2 (Radford et al. 2019): normal with deviation 0.02.
    """

    def __init__(
        self, vocab_size: int, block_size: int, n_layer: int, n_head: int, n_embd: int
    ) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocab_size, n_embd)
        self.position_embedding = nn.Embedding(block_size, n_embd)
        self.blocks = nn.ModuleList(Block(n_embd, n_head) for _ in range(n_layer))
        self.norm = nn.LayerNorm(n_embd)
        self.head = nn.Linear(n_embd, vocab_size, bias=False)
        self.apply(_init_weights)

    def forward(self, input_ids: Tensor, labels: Tensor) -> CausalOutput:
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.token_embedding(input_ids) + self.position_embedding(positions)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        predicted, targets = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        loss = F.cross_entropy(predicted, targets)
        return CausalOutput(loss, logits)


def _init_weights(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def mini_gpt(params: Model, vocab_size: int) -> MiniGPT:
    """Return a new MiniGPT of the size in ``params``; the default ``model.factory``."""
    return MiniGPT(
        vocab_size, params.block_size, params.n_layer, params.n_head, params.n_embd
    )
