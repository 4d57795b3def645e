"""A loop of two ranks in which step 12 stalls for a while; KIND selects how.

torchrun --nproc-per-node 2 tests/support/stalling_loop.py KIND FOLDER
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

import minitrain

KIND, FOLDER = sys.argv[1:]
TIMEOUT_S, STALL_S = 2.0, 8.0


def stall(kind: str, on_rank: int | None = 1) -> bool:
    """Return true if it is the kind, and the rank; some kinds stall here."""
    if kind != KIND or (rank != on_rank and on_rank is not None):
        return False
    print("it stalls", file=sys.stderr, flush=True)
    if kind == "stopped":
        subprocess.Popen(["sh", "-c", f"sleep {STALL_S}; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "disk":
        subprocess.run(["sh", "-c", f"sleep {STALL_S}"], check=True)
    elif kind in ("loader", "checkpoint"):
        time.sleep(STALL_S)
    return True


class Samples(IterableDataset[Tensor]):
    def __iter__(self):
        for step in range(24):
            if step == 12:
                stall("loader")
            yield torch.randn(4, 8)


dist.init_process_group("gloo")
rank = dist.get_rank()
limit = timedelta(seconds=STALL_S)
groups = [dist.new_group([0, 1], timeout=limit) for _ in range(2)]
torch.set_num_threads(1)
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Samples(), batch_size=None)
with minitrain.record(model, optimizer, FOLDER, timeout_s=TIMEOUT_S):
    for step, batch in enumerate(loader):
        if step == 12 and stall("break"):
            break
        loss = model(batch).square().mean()
        loss.backward()
        if KIND == "pauses" and step in (12, 16):
            model.eval()
            for _ in range(5):
                time.sleep(TIMEOUT_S / 4)
                model.module(batch)
            model.train()
            # rank 0 saves, and the other one waits for it
            time.sleep(TIMEOUT_S / 2 * (rank == 0))
        if step == 12:
            if stall("deadlock", on_rank=None):
                # each waits for the other, in separate groups
                with suppress(RuntimeError):
                    dist.all_reduce(torch.ones(1), group=groups[rank])
            stall("disk")
            stall("stopped")
            stall("checkpoint", on_rank=None)
        optimizer.step()
        optimizer.zero_grad()
if KIND == "break" and rank == 1:
    time.sleep(STALL_S)
    # the passes that the other rank waits for
    for _ in range(12):
        model(batch).square().mean().backward()
