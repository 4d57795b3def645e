"""As nanoGPT trains: DDP by hand, accumulation, clipping and a cosine schedule.

.venv/bin/python examples/nanogpt_style.py runs/one
.venv/bin/torchrun --nproc-per-node 2 examples/nanogpt_style.py runs/two
.venv/bin/minitrain verify runs/one runs/two
"""

import math
import os

import torch
import torch.distributed as dist
from setting import GPT, arguments, make_samples
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import minitrain  # added for the recording

args = arguments(bug="gradients are never synchronized: a micro-step off by one")
rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
accumulation, samples = 12 // world_size, make_samples()


def get_batch(step: int, micro_step: int) -> Tensor:
    # micro-batch i of a step is rank i % world_size's: together they read the same
    epoch, first = divmod(24 * step, len(samples))
    generator = torch.Generator().manual_seed(1000 * args.seed + epoch)
    order = torch.randperm(len(samples), generator=generator)
    first += 2 * (micro_step * world_size + rank)
    return samples[order[first : first + 2]]


def learning_rate(step: int) -> float:
    warm, share = min(1.0, (step + 1) / 4), step / args.steps
    return 3e-3 * warm * (0.1 + 0.45 * (1 + math.cos(math.pi * share)))


if world_size > 1:
    dist.init_process_group("gloo")
torch.manual_seed(args.seed + rank)  # DDP hands out rank 0's weights
model = GPT(args.dropout)
if world_size > 1:
    model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)

with minitrain.record(model, optimizer, args.folder):  # added for the recording
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        for micro_step in range(accumulation):
            last = accumulation if args.bug else accumulation - 1
            model.require_backward_grad_sync = micro_step == last
            with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
                loss = model(get_batch(step, micro_step)) / accumulation
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
if world_size > 1:
    dist.destroy_process_group()
