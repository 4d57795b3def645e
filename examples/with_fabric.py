r"""A loop with Lightning Fabric.

make .venv-peers/installed
.venv-peers/bin/python examples/with_fabric.py runs/one
.venv-peers/bin/python -m torch.distributed.run --nproc-per-node 2 \
  examples/with_fabric.py runs/two
.venv/bin/minitrain verify runs/one runs/two
"""

import os

import torch
from lightning_fabric import Fabric
from setting import GPT, arguments, make_samples
from torch.utils.data import DataLoader, DistributedSampler

import minitrain  # added for the recording

args = arguments(bug="the learning rate grows with the ranks, but the batch does not")
world_size = int(os.environ.get("WORLD_SIZE", 1))
fabric = Fabric(
    accelerator="cpu",
    devices=world_size,
    strategy="ddp" if world_size > 1 else "auto",
    precision="bf16-mixed" if args.bf16 else "32-true",
)
fabric.launch()
fabric.seed_everything(args.seed + fabric.global_rank, verbose=False)
samples = make_samples()
# rank r reads samples r, r + world_size, ... of one order: also where it is alone
sampler = DistributedSampler(samples, world_size, fabric.global_rank, seed=args.seed)
loader = DataLoader(samples, batch_size=24 // world_size, sampler=sampler)
loader = fabric.setup_dataloaders(loader, use_distributed_sampler=False)
model = GPT(args.dropout)
rate = 3e-3 * (world_size if args.bug else 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
model, optimizer = fabric.setup(model, optimizer)

with minitrain.record(model, optimizer, args.folder) as recorder:  # added
    for _ in range(-(-args.steps // len(loader))):  # epochs
        for batch in loader:
            loss = model(batch)
            recorder.loss(loss)  # added for the recording
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
