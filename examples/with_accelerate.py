r"""A loop with Hugging Face Accelerate, which accumulates gradients of two batches.

make .venv-peers/installed
.venv-peers/bin/python examples/with_accelerate.py runs/one
.venv-peers/bin/python -m torch.distributed.run --nproc-per-node 2 \
  examples/with_accelerate.py runs/two
.venv/bin/minitrain verify runs/one runs/two
"""

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from setting import GPT, arguments, make_samples
from torch.optim.lr_scheduler import LinearLR
from torch.utils.data import DataLoader

import minitrain  # added for the recording

args = arguments(bug="the loader is not prepared: all ranks read all samples")
accelerator = Accelerator(
    cpu=True,
    mixed_precision="bf16" if args.bf16 else "no",
    gradient_accumulation_steps=2,
    # the ranks share each batch of the loader: any number of them reads the same
    dataloader_config=DataLoaderConfiguration(
        split_batches=True, use_seedable_sampler=True, data_seed=args.seed
    ),
)
set_seed(args.seed)
model = GPT(args.dropout)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = LinearLR(optimizer, 0.25, total_iters=4)
loader = DataLoader(make_samples(), batch_size=12, shuffle=True)
prepared = accelerator.prepare(loader)
if not args.bug:
    loader = prepared
model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)

with minitrain.record(model, optimizer, args.folder) as recorder:  # added
    for _ in range(-(-args.steps // 10)):  # epochs
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(batch)
                recorder.loss(loss)  # added for the recording
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
accelerator.end_training()
