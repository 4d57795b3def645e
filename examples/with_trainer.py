r"""A small GPT-2 with random weights, trained by the Trainer of transformers.

make .venv-peers/installed
.venv-peers/bin/python examples/with_trainer.py runs/one
.venv-peers/bin/python -m torch.distributed.run --nproc-per-node 2 \
  examples/with_trainer.py runs/two
.venv/bin/minitrain verify runs/one runs/two
"""

import os

from setting import LENGTH, VOCABULARY, arguments, make_samples
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
    set_seed,
)

import minitrain  # added for the recording

args = arguments(bug="a mean of the ranks' means, though they count unlike many tokens")
world_size = int(os.environ.get("WORLD_SIZE", 1))
settings = TrainingArguments(
    args.folder,
    # the ranks take turns with batches: 2 x 12 samples a step, however many they are
    per_device_train_batch_size=12 // world_size,
    gradient_accumulation_steps=2,
    max_steps=args.steps,
    learning_rate=3e-3,
    lr_scheduler_type="cosine",
    warmup_steps=3,
    seed=args.seed,
    bf16=args.bf16,
    use_cpu=True,
    average_tokens_across_devices=not args.bug,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
)
set_seed(args.seed)
sizes = {"vocab_size": VOCABULARY, "n_positions": LENGTH + 1, "n_embd": 32}
drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), args.dropout)
ends = {"bos_token_id": 0, "eos_token_id": 0}
model = GPT2LMHeadModel(GPT2Config(**sizes, **drops, **ends, n_layer=2, n_head=2))
samples = []
for number, row in enumerate(make_samples()):
    labels = row.clone()
    labels[4 + 3 * number % 13 :] = -100  # texts of unlike length
    samples.append({"input_ids": row, "labels": labels})
trainer = Trainer(model, settings, train_dataset=samples)

with minitrain.record(model, None, args.folder):  # added for the recording
    trainer.train()
