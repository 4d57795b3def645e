"""Check a right model of transformers, made from a configuration: it is proven."""

import torch
from fork_server import ForkServer
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM

from minitrain.check.data_parallel import check_data_parallel
from minitrain.harness import launcher

VOCABULARY, LENGTH, ROWS, STEPS = 61, 10, 6, 2
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


def bert() -> nn.Module:
    return BertForMaskedLM(
        BertConfig(**SIZES, num_attention_heads=2, intermediate_size=32)
    )


def targets(batch: dict[str, Tensor]) -> int:
    """The model does not shift its labels."""
    return int((batch["labels"] != -100).sum())


def main() -> None:
    # importing transformers takes a rank longer than all that it computes
    fork_server = ForkServer(["transformers.models.bert.modeling_bert"])
    launcher._start = fork_server.fork
    try:
        ladder = check_data_parallel(bert, masked_text(), world_size=2, count=targets)
    finally:
        fork_server.stop()
    assert ladder.verdict == "proven", ladder.rests_on


if __name__ == "__main__":
    main()
