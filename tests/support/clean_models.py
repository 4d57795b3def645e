"""Check right models: one of transformers, made from a configuration, and two by hand.

Prints a line of JSON for each: its name, the verdict and the reason.
"""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from fork_server import ForkServer
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertConfig, BertForMaskedLM

from minitrain.check.check import check_data_parallel
from minitrain.core.errors import EvidenceError
from minitrain.harness import launcher

VOCABULARY, LENGTH, ROWS, STEPS = 61, 10, 6, 2
WEIGHT = torch.tensor([1.0, 5.0, 2.0])
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2}


def masked_text() -> list[dict[str, Tensor]]:
    """Batches of rows of unequal lengths, with a third of the tokens as labels."""
    chance = torch.Generator().manual_seed(0)
    found = []
    for _ in range(STEPS):
        ids = torch.randint(1, VOCABULARY, (ROWS, LENGTH), generator=chance)
        lengths = torch.randint(3, LENGTH + 1, (ROWS, 1), generator=chance)
        mask = torch.arange(LENGTH) < lengths
        is_label = mask & (ids % 3 == 0)
        # each row has a label at least
        is_label[:, 0] = True
        inputs = {"input_ids": ids.masked_fill(~mask, 0), "attention_mask": mask.long()}
        found.append({**inputs, "labels": ids.masked_fill(~is_label, -100)})
    return found


def images() -> list[dict[str, Tensor]]:
    chance = torch.Generator().manual_seed(0)
    return [
        {
            "pixels": torch.randn(ROWS, 768, generator=chance),
            "labels": torch.randint(3, (ROWS,), generator=chance),
        }
        for _ in range(STEPS)
    ]


class Classifier(nn.Module):
    """Classifier that casts to bfloat16 itself, or weights its classes."""

    def __init__(self, casts: bool) -> None:
        super().__init__()
        self.dtype = torch.bfloat16 if casts else torch.float32
        self.weight = None if casts else WEIGHT
        layers = nn.Linear(768, 16), nn.Dropout(0.0 if casts else 0.1), nn.Linear(16, 3)
        self.layers = nn.Sequential(*layers).to(self.dtype)

    def forward(self, pixels: Tensor, labels: Tensor) -> Any:
        logits = self.layers(pixels.to(self.dtype)).float()
        return SimpleNamespace(loss=F.cross_entropy(logits, labels, self.weight))


def bert() -> nn.Module:
    return BertForMaskedLM(
        BertConfig(**SIZES, num_attention_heads=2, intermediate_size=32)
    )


# how to make each, its batches, and what counts its targets
KINDS: dict[str, tuple[Callable[[], nn.Module], list[dict[str, Tensor]], Any]] = {
    # which does not shift its labels
    "bert": (bert, masked_text(), lambda batch: int((batch["labels"] != -100).sum())),
    "casts": (lambda: Classifier(True), images(), None),
    "class weights": (
        lambda: Classifier(False),
        images(),
        lambda batch: WEIGHT[batch["labels"]].sum(),
    ),
}


def main() -> None:
    # importing transformers takes a rank longer than all that it computes
    fork_server = ForkServer(["transformers.models.bert.modeling_bert"])
    launcher._start = fork_server.fork
    try:
        for name, (factory, batches, count) in KINDS.items():
            try:
                ladder = check_data_parallel(
                    factory, batches, world_size=2, count=count
                )
                verdict, why = ladder.verdict, ladder.rests_on
            except EvidenceError as error:
                verdict, why = "raised", str(error)
            print(json.dumps({"name": name, "verdict": verdict, "why": why}))
    finally:
        fork_server.stop()


if __name__ == "__main__":
    main()
