"""Check right models of many kinds: python clean_models.py COUNT [NAME ...].

Prints a line of JSON for each run: name, seed, number of ranks, verdict and its reason.
The models are tiny ones of transformers, made from a configuration, and two by hand.
"""

import json
import random
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import transformers as hf
from fork_server import ForkServer
from torch import Tensor, nn
from torch.nn import functional as F

from minitrain.check.check import check_data_parallel
from minitrain.core.errors import EvidenceError
from minitrain.harness import launcher

VOCABULARY, LENGTH, ROWS, STEPS = 61, 10, 6, 2
WEIGHT = torch.tensor([1.0, 5.0, 2.0])


def text(seed: int) -> list[dict[str, Tensor]]:
    """Batches whose rows have unequal numbers of labels."""
    chance = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(STEPS):
        shape = (ROWS, LENGTH)
        ids = torch.randint(1, VOCABULARY, shape, generator=chance)
        lengths = torch.randint(3, LENGTH + 1, (ROWS, 1), generator=chance)
        mask = torch.arange(LENGTH) < lengths
        found.append(
            {
                "input_ids": ids.masked_fill(~mask, 0),
                "attention_mask": mask.long(),
                "labels": ids.masked_fill(~mask, -100),
            }
        )
    return found


def masked(seed: int) -> list[dict[str, Tensor]]:
    """The same with a third of the tokens as labels."""
    found = text(seed)
    for batch in found:
        batch["labels"].masked_fill_(batch["input_ids"] % 3 > 0, -100)
        # each row has a label at least
        batch["labels"][:, 0] = batch["input_ids"][:, 0]
    return found


def images(seed: int) -> list[dict[str, Tensor]]:
    chance = torch.Generator().manual_seed(seed)
    return [
        {
            "pixel_values": torch.randn(ROWS, 3, 16, 16, generator=chance),
            "labels": torch.randint(3, (ROWS,), generator=chance),
        }
        for _ in range(STEPS)
    ]


def all_labels(batch: dict[str, Tensor]) -> int:
    """Of a model that does not shift its labels."""
    return int((batch["labels"] != -100).sum())


def weights(batch: dict[str, Tensor]) -> Tensor:
    return WEIGHT[batch["labels"]].sum()


class Casts(nn.Module):
    """A classifier in bfloat16 by casts of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(768, 16), nn.GELU(), nn.Linear(16, 3)
        ).to(torch.bfloat16)

    def forward(self, pixel_values: Tensor, labels: Tensor) -> Any:
        logits = self.layers(pixel_values.to(torch.bfloat16)).float()
        return SimpleNamespace(loss=F.cross_entropy(logits, labels))


class Weighted(nn.Module):
    """Class weights, which are a constant in float32, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        layers = nn.Flatten(), nn.Linear(768, 16), nn.Dropout(0.1), nn.Linear(16, 3)
        self.layers = nn.Sequential(*layers)

    def forward(self, pixel_values: Tensor, labels: Tensor) -> Any:
        logits = self.layers(pixel_values)
        return SimpleNamespace(loss=F.cross_entropy(logits, labels, weight=WEIGHT))


SMALL = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2}
BERT = {**SMALL, "num_attention_heads": 2, "intermediate_size": 32}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 2}
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}


def of(model: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    """A model of transformers by the names of its class and its configuration."""
    return lambda: getattr(hf, model)(getattr(hf, config)(**settings))


Kind = tuple[Callable[[], nn.Module], Callable[[int], Any], Any]
KINDS: dict[str, Kind] = {
    "gpt2": (of("GPT2LMHeadModel", "GPT2Config", **GPT2), text, None),
    "bert": (of("BertForMaskedLM", "BertConfig", **BERT), masked, all_labels),
    "resnet": (
        of("ResNetForImageClassification", "ResNetConfig", **RESNET, num_labels=3),
        images,
        None,
    ),
    "casts": (Casts, images, None),
    "class weights": (Weighted, images, weights),
}
OWN = ("casts", "class weights")


def main() -> None:
    names = sys.argv[2:] or [*KINDS]
    # importing transformers takes a rank longer than all that it computes
    modules = [f"transformers.models.{n}.modeling_{n}" for n in names if n not in OWN]
    fork_server = ForkServer(modules)

    launcher._start = fork_server.fork
    try:
        check(int(sys.argv[1]), names)
    finally:
        fork_server.stop()


def check(count: int, names: list[str]) -> None:
    draw = random.Random(0)
    for seed in range(count):
        name = names[seed % len(names)]
        factory, batches, counted = KINDS[name]
        given: dict[str, Any] = {
            "world_size": draw.choice([2, 2, 3]),
            "optimizer": draw.choice(["adamw", "sgd"]),
            "learning_rate": 10 ** draw.uniform(-4, -3),
        }
        try:
            ladder = check_data_parallel(
                factory, batches(seed), count=counted, seed=seed, **given
            )
            verdict, why = ladder.verdict, ladder.rests_on
        except EvidenceError as error:
            verdict, why = "raised", str(error)
        row = {"name": name, "seed": seed, **given, "verdict": verdict, "why": why}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
