"""A small DDP loop, right or with the fault that its argument names.

    torchrun --nproc-per-node 2 docs/symptoms/train.py FAULT

The pages of this folder record it with `minitrain record`, which needs no change here.
Each fault is one line.
"""

import argparse
import contextlib
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("fault", nargs="?", default="none")
parser.add_argument("--width", type=int, default=32)
parser.add_argument("--steps", type=int, default=24)
parser.add_argument("--micro-batches", type=int, default=1)
parser.add_argument("--save", help="write a checkpoint after half of the steps")
parser.add_argument("--resume", help="read it, and go on from there")
options = parser.parse_args()
FAULT, BATCH, CLASSES = options.fault, 16, 4


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, width), nn.GELU())
        self.hidden = nn.Linear(width, width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, skip: bool) -> Tensor:
        x = self.body(x)
        return self.head(x if skip else self.hidden(x).relu())


def samples_of(step: int) -> tuple[Tensor, Tensor]:
    """Return the whole batch of a step: the same on every rank."""
    seed = time.time_ns() if FAULT == "unseeded" else step
    chance = torch.Generator().manual_seed(seed)
    x = torch.randn(BATCH, 8, generator=chance)
    y = x[:, :CLASSES].argmax(1)
    # no target, like padding: three samples of rank 0 of two
    y[:6:2] = -100
    return x, y


def loss_of(x: Tensor, y: Tensor, targets: int, skip: bool) -> Tensor:
    scores = model(x, skip)
    if FAULT == "mean-of-means":
        return nn.functional.cross_entropy(scores, y)
    total = nn.functional.cross_entropy(scores, y, reduction="sum")
    if FAULT == "not-divided":
        total = total * options.micro_batches
    # DDP divides by the number of ranks
    return total * world_size / targets


rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
torch.set_num_threads(1)
torch.manual_seed(0)
model: nn.Module = Model(options.width)
if world_size > 1:
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    if FAULT == "fsdp":
        fully_shard(model)
    else:
        model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
first = 0
if options.resume:
    saved = torch.load(options.resume)
    model.load_state_dict(saved["model"])
    if FAULT != "no-optimizer":
        optimizer.load_state_dict(saved["optimizer"])
    first = saved["step"]

for step in range(first, options.steps):
    x, y = samples_of(step)
    if FAULT == "slow" and rank == 1:
        time.sleep(0.02)
    if FAULT == "nan" and rank == 1 and step == 5:
        x = x / 0
    targets = int((y != -100).sum())
    mine = slice(rank, None, world_size)
    parts = options.micro_batches
    for part, (x_part, y_part) in enumerate(
        zip(x[mine].chunk(parts), y[mine].chunk(parts), strict=True)
    ):
        skip = FAULT == "unused" and step >= 3
        last = part == parts - 1
        sync = contextlib.nullcontext() if last else model.no_sync()
        with sync:
            loss = loss_of(x_part, y_part, targets, skip)
            loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if FAULT == "barrier" and rank == 0 and step == 5:
        dist.barrier()
    if options.save and rank == 0 and step + 1 == options.steps // 2:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "step": step + 1}, options.save)
if world_size > 1:
    dist.destroy_process_group()
