"""Passes for the witness, in eval mode, and gradients without minitrain's hook.

In eval mode the loss of a sample depends on that sample alone. So after the last step
each rank repeats a step in eval mode, with the same weights, strategy and reductions.
The witness (an independent check) compares the gradient with the gradient of one whole
batch. With a precision of 16 bits there are two passes, one of them in float32.
"""

from collections.abc import Sequence
from types import SimpleNamespace

import torch
from torch import Tensor

from minitrain.comm.collective_calls import everyone
from minitrain.sync.ddp_buckets import StockDDP
from minitrain.sync.strategy import trained
from minitrain.train.config import RunConfig
from minitrain.train.observer import Observer
from minitrain.train.precision import Precision
from minitrain.train.rng import untouched
from minitrain.train.step_record import (
    Row,
    TrainResult,
    gradients_of,
    sha256_tensor,
    whole_copies,
)
from minitrain.train.worker import Worker

# an optimizer that changes nothing
NO_STEP = SimpleNamespace(step=lambda: None)


class GradientObserver(Observer):
    """Observer that stores the losses and synchronized gradients of the last step."""

    gradients: dict[str, Tensor]

    def before_step(self) -> None:
        self.gradients = whole_copies(gradients_of(self.worker.model))


def add_probes(result: TrainResult, worker: Worker) -> None:
    """Repeat a step in eval mode (the probe) and add its losses and gradients to
    ``result`` for the witness, or the reason why a rank cannot compute them.
    Collective. It changes ``worker``, so call it last.
    """
    passes, bits = {"probe": Precision("float32")}, worker.config.precision
    if bits != "float32":
        # without a scaler, because no step is taken
        passes["rounded"] = Precision(bits, worker.device.type, scales=False)
    worker.sync.module.eval()
    step = result.probe_step = _uneven_step(result.hashes)
    reasons = everyone(lambda: _why_not(worker, step))
    if reason := next(filter(None, reasons), ""):
        result.hashes.append({"kind": "no probe", "step": step, "reason": reason})
        return
    for name, precision in passes.items():
        worker.model.zero_grad()
        # the worker is not trained after this
        worker.precision, worker.optimizer = precision, NO_STEP
        with untouched(worker.model):
            seen = _once(worker, step)
        result.probes[name] = seen.shares()
        for parameter, gradient in seen.gradients.items():
            result.sampled[f"{name}/gradients/{parameter}"] = gradient


def _why_not(worker: Worker, step: int) -> str:
    # Try a pass without collectives: one that a rank does not reach would hang the
    # others. Empty if this rank can compute in eval mode.
    sync = worker.sync
    # FSDP would communicate in this pass too
    if not type(sync).has_account:
        return ""
    part = worker.batches.micro_batches(step)[0]
    sync.model.zero_grad()
    try:
        with untouched(sync.model), sync.no_sync():
            loss = worker.batches.loss(sync.module, part.inputs)
            loss.backward()
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"
    finally:
        unused = [n for n, p in trained(sync.model).items() if p.grad is None]
        sync.model.zero_grad()
    if not bool(loss.isfinite()):
        return f"the loss is {loss.item()}"
    if unused and not sync.tuning.find_unused_parameters:
        return f"parameter {unused[0]} is not used"
    return ""


def _uneven_step(rows: Sequence[Row]) -> int:
    # the last step at which ranks or micro-batches have unequal numbers of targets,
    # else the last step; the same on all ranks
    fed = (row for row in rows if row["kind"] == "fed")
    mine = [[part["targets"] for part in row["parts"]] for row in fed]
    steps = [*zip(*everyone(lambda: mine), strict=True)]
    for step in reversed(range(len(steps))):
        of_ranks = {sum(own) for own in steps[step]}
        of_parts = {targets for own in steps[step] for targets in own}
        if any(len(counts - {0}) > 1 for counts in (of_ranks, of_parts)):
            return step
    return len(steps) - 1


def unwatched_gradients(config: RunConfig, device: torch.device | None) -> Row | None:
    """Return a row with hashes of step 0's gradients under DDP without minitrain's
    hook, to show that the hook changes no bits; None for other strategies. Collective.
    Call it before the worker that trains is built.
    """
    sync = config.sync
    is_stock = issubclass(sync, StockDDP) and sync.is_stock()
    if not (is_stock and config.tuning.overlap):
        return None
    worker = Worker(config, device=device, timed=False)
    seen = _once(worker, 0)
    worker.close()
    # a reference cycle would keep the model until the next garbage collection
    del worker.observer
    hashes = {name: sha256_tensor(grad) for name, grad in seen.gradients.items()}
    return {"kind": "unwatched", "step": 0, "gradients": hashes}


def _once(worker: Worker, step: int) -> GradientObserver:
    observer = worker.observer = GradientObserver(worker)
    worker.train([step])
    return observer
