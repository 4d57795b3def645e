"""Check a right model of transformers, made from a configuration: it is proven."""

import torch
from forks import FOR_RANKS, Server
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM

from minitrain.check.data_parallel import check_data_parallel
from minitrain.harness import launcher

VOCABULARY, LENGTH, ROWS, STEPS = 61, 10, 6, 2
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2}


def batch(chance: torch.Generator) -> dict[str, Tensor]:
    """Rows of unequal lengths, with a third of the tokens as labels."""
    ids = torch.randint(1, VOCABULARY, (ROWS, LENGTH), generator=chance)
    lengths = torch.randint(3, LENGTH + 1, (ROWS, 1), generator=chance)
    mask = torch.arange(LENGTH) < lengths
    is_label = mask & (ids % 3 == 0)
    # each row has a label at least
    is_label[:, 0] = True
    inputs = {"input_ids": ids.masked_fill(~mask, 0), "attention_mask": mask.long()}
    return {**inputs, "labels": ids.masked_fill(~is_label, -100)}


def bert() -> nn.Module:
    sizes = {**SIZES, "num_attention_heads": 2, "intermediate_size": 32}
    return BertForMaskedLM(BertConfig(**sizes))


def targets(batch: dict[str, Tensor]) -> int:
    """The model does not shift its labels."""
    return int((batch["labels"] != -100).sum())


if __name__ == "__main__":
    # importing transformers takes a rank longer than all that it computes
    server = Server([*FOR_RANKS, "transformers.models.bert.modeling_bert"])
    launcher._start = server.fork
    chance = torch.Generator().manual_seed(0)
    batches = [batch(chance) for _ in range(STEPS)]
    ladder = check_data_parallel(bert, batches, world_size=2, count=targets)
    server.stop()
    assert ladder.verdict == "proven", ladder.rests_on
