"""What the four loops beside this file share: arguments, samples and a small GPT."""

import argparse

import torch
from torch import Tensor, nn

VOCABULARY, LENGTH = 64, 16


def arguments(bug: str) -> argparse.Namespace:
    """What every loop is called with; ``--bug`` plants the one that it has."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", help="where the recording goes")
    parser.add_argument("--bug", action="store_true", help=bug)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--bf16", action="store_true", help="under torch.autocast")
    return parser.parse_args()


def make_samples(count: int = 240) -> Tensor:
    """Sequences that count up in steps of their own; no two are alike."""
    number = torch.arange(count)[:, None]
    start, stride = number % VOCABULARY, 1 + number // VOCABULARY
    return (start + stride * torch.arange(LENGTH + 1)) % VOCABULARY


class GPT(nn.Module):
    """Two blocks, and the table of tokens once more as the head."""

    def __init__(self, dropout: float, width: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 2, 4 * width, dropout, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(2)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        for table in (self.tokens, self.places):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, rows: Tensor) -> Tensor:
        """The loss of predicting each token from those before it."""
        x, y = rows[:, :-1], rows[:, 1:]
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        hidden = self.tokens(x) + self.places.weight
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask, is_causal=True)
        scores = self.head(self.norm(hidden))
        return nn.functional.cross_entropy(scores.flatten(0, 1).float(), y.flatten())
