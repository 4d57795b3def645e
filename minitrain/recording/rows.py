"""Rows (JSON lines) of a recording: the header, one for each recorded step, the end."""

import os
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from minitrain.core.errors import UserError
from minitrain.recording import hooks
from minitrain.recording.backwards import BackwardPass, Backwards
from minitrain.recording.fingerprint import BINS, digest, fingerprint, stays_sparse
from minitrain.recording.format import VERSION, Row
from minitrain.recording.inputs import random_digest, read
from minitrain.recording.modules import ModuleCalls
from minitrain.recording.optimizers import Optimizers, Stepped

TWIN = "MINITRAIN_TWIN"
MOVED = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
# at most so many passes are kept for a step: more than any step accumulates
MOST_PASSES = 1024
# defaults of a step without a forward pass
NO_PASS: Row = {"wrapper": "", "wrapper_id": 0, "synced": None, "group": None}
NO_FIRST: Row = {"random": "", "buffers": {}, "broadcast_buffers": None}


def rank_and_size() -> tuple[int, int]:
    """Return rank and world size, from torch.distributed or else torchrun's environment
    variables; 0 and 1 if neither has them.
    """
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def is_twin() -> bool:
    """Return true if this is a perturbed run: MINITRAIN_TWIN=1 (:func:`perturb`)."""
    return os.environ.get(TWIN) == "1"


@torch.no_grad()
def perturb(parameters: Iterable[Tensor]) -> None:
    """Increase floating-point parameters by one unit in the last place, in place."""
    for parameter in parameters:
        # each rank moves its own shard of a sharded one
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        if local.dtype in MOVED:
            up = torch.full((), torch.inf, dtype=local.dtype, device=local.device)
            local.copy_(torch.nextafter(local, up))


def header_of(inner: nn.Module, every: int) -> Row:
    """Return the header, the first row of a recording: settings, and shapes and hashes
    of the parameters before the first step. ``inner``: the model without wrappers;
    ``every``: as in ``record``. Collective if parameters are sharded.
    """
    parameters, pairs = hooks.parameters_of(inner), hooks.tied(inner)
    rank, world_size = rank_and_size()
    header = {
        "kind": "recording",
        "version": VERSION,
        "rank": rank,
        "world_size": world_size,
        "every": every,
        "twin": is_twin(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "device": next(iter(parameters.values())).device.type,
        "bins": BINS,
        "parameters": {
            name: {
                "shape": [*parameter.shape],
                "dtype": str(parameter.dtype).removeprefix("torch."),
                "trained": parameter.requires_grad,
            }
            for name, parameter in parameters.items()
        },
        "start": {name: digest(p) for name, p in parameters.items()},
    }
    return header | ({"tied": pairs} if pairs else {})


def require_whole(inner: nn.Module) -> None:
    """Raise UserError if ``inner`` is sharded in a way that the recorder cannot read;
    call it in the first forward pass.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return
    if any(isinstance(m, fsdp.FullyShardedDataParallel) for m in inner.modules()):
        raise UserError(
            "record: model is in FullyShardedDataParallel, whose parameters have no "
            "names of their own: use fully_shard"
        )
    if isinstance(inner, fsdp.FSDPModule) and not is_sharded(inner):
        raise UserError(
            "record: fully_shard(model) was called after the recorder's start: call it "
            "before"
        )


def is_sharded(inner: nn.Module) -> bool:
    """Return true if some parameters are sharded over the ranks."""
    return any(map(hooks.is_in_parts, inner.parameters()))


class StepRows:
    """Collect the rows of the recorded steps of ``inner``, the model without wrappers.

    ``also``: other modules to hash, by name. ``calls`` records calls of modules within
    a pass, unless None. ``forwards`` counts training passes, ``evals`` passes with
    gradients in evaluation mode, recorded or not. ``begun``: the unfinished row of
    each optimizer that is in a recorded step, by the optimizer's number.
    """

    def __init__(
        self,
        inner: nn.Module,
        wrappers: hooks.Wrappers,
        also: Mapping[str, nn.Module],
        calls: ModuleCalls | None,
    ) -> None:
        self._inner, self._wrappers = inner, wrappers
        self._also, self.calls = also, calls
        self.begun: dict[int, Row] = {}
        self.forwards = self.evals = 0
        self._passes: deque[BackwardPass] = deque(maxlen=MOST_PASSES)
        # number of passes of recorded steps so far
        self._num_passes = 0
        self._first_pass: BackwardPass | None = None
        self._backwards = Backwards()
        # steps of all optimizers when hooks began to see each gradient
        self._listens, self._seen_from = False, 0
        # if dropout or batch norm were in training mode; and the first step after that
        # whose passes were all in evaluation mode, until it is in a row
        self._acted, self._in_eval = False, dict[str, int]()

    def pass_begins(
        self, wrapper: nn.Module | None, module: nn.Module, args: Any, options: Any
    ) -> None:
        """Record a training pass as it begins: its inputs, wrapper and random state."""
        facts = read(module, args, options) | NO_PASS
        if wrapper is not None:
            group = getattr(wrapper, "process_group", None)
            facts |= {
                "wrapper": type(wrapper).__name__,
                "synced": getattr(wrapper, "require_backward_grad_sync", None),
                "group": group.size() if isinstance(group, dist.ProcessGroup) else None,
            }
        random = self._random()
        facts |= {"random": random, "draws": False, "wrapper_id": self._wrappers.count}
        facts["replaced"] = hooks.replaced_in(wrapper, self._inner)
        if self.calls is not None:
            self.calls.listen(self._inner, module)
        one = BackwardPass(self._num_passes, facts)
        self._backwards.pass_begins(one)
        self._passes.append(one)
        self._num_passes += 1
        if self._first_pass is None:
            self._first_pass = one
            one.first = {
                "broadcast_buffers": getattr(wrapper, "broadcast_buffers", None),
                "buffers": self._buffers(),
                "random": random,
            }

    def pass_ended(self) -> None:
        """Record the ended pass's module calls, and if it drew random numbers."""
        self.look_for_draws()
        if self.calls is not None:
            self.calls.forget()
            if self._passes:
                self._passes[-1].told["modules"] = self.calls.calls

    def look_for_draws(self) -> None:
        """Record whether the last pass, or its loss, drew random numbers so far."""
        if self._passes and not (told := self._passes[-1].told)["draws"]:
            told["draws"] = self._random() != told["random"]

    def listen(self, optimizers: Optimizers) -> None:
        """Add hooks to all of the model's parameters that require a gradient now."""
        self._backwards.listen(self._inner)
        if not self._listens:
            self._listens, self._seen_from = True, optimizers.steps
            self._acted = hooks.acts_in_training(self._inner)

    def forget(self) -> None:
        """Remove the hooks and drop the passes: the next step is not recorded."""
        if self._listens:
            self._listens = False
            self._passes.clear()
            self._backwards.forget()
            # an error may have ended the pass
            if self.calls is not None:
                self.calls.forget()

    def end(self, steps: Mapping[str, int], together: bool) -> Row:
        """Return the last row of a recording.

        Args:
            steps: how many steps each optimizer made, by its number.
            together: add parameters and buffers, which is collective if sharded.
        """
        row = {"kind": "end", "steps": steps, "forwards": self.forwards} | self._mode()
        if together:
            named = hooks.parameters_of(self._inner)
            row["parameters"] = {name: fingerprint(p) for name, p in named.items()}
            row["buffers"] = self._buffers()
            row |= {"also": self._beside_the_model()} if self._also else {}
        return row

    def _mode(self) -> dict[str, int]:
        found, self._in_eval = self._in_eval, {}
        return found

    def _beside_the_model(self) -> dict[str, str]:
        return {
            f"{name}.{of}": digest(tensor)
            for name, module in self._also.items()
            for of, tensor in hooks.named_tensors(hooks.innermost(module)).items()
        }

    def _buffers(self) -> dict[str, Row]:
        # dense numbers may differ by rounding, which their sketches show
        named = hooks.plain_names(self._inner, self._inner.named_buffers())
        return {
            n: fingerprint(b)
            if b.is_floating_point() and not stays_sparse(b)
            else {"hash": digest(b)}
            for n, b in named.items()
        }

    def _random(self) -> str:
        # the model may have been moved since the recorder was made
        return random_digest(next(self._inner.parameters()).device)

    def loss(self, loss: Tensor | float) -> None:
        """Add a loss of the last training pass; the step's row gets the mean of all."""
        if self._passes:
            # the loop may change it in place
            told = loss.detach().clone() if isinstance(loss, Tensor) else loss
            self._passes[-1].losses.append(told)

    def step_begins(
        self, stepped: Stepped, optimizers: Optimizers, together: bool
    ) -> None:
        """Begin the row of a step of ``stepped``. It gets hashes of tensors only if
        ``together``: parameters are unsharded, or all ranks have reached this step.
        """
        named = hooks.parameters_of(self._inner) if together else {}
        held, elsewhere = stepped.holds(), optimizers.hold()
        lost = [name for name, p in named.items() if id(p) not in elsewhere]
        written = {name for name, p in named.items() if id(p) in held}
        written |= {*lost} if stepped.number == 0 else set()
        row: Row = {"kind": "step", "optimizer": stepped.number, "step": stepped.steps}
        row["before"] = {n: digest(p) for n, p in named.items() if n in written}
        # at step 0 they may belong to an optimizer that has not made a step yet
        row["not_held"] = [n for n in lost if named[n].requires_grad and stepped.steps]
        self.begun[stepped.number] = row
        if not stepped.by_closure:
            self._collect(row, stepped, named)

    def step_ended(self, stepped: Stepped, together: bool) -> Row | None:
        """Return the finished row of a step; None if it is not recorded. ``together``:
        as in :meth:`step_begins`.
        """
        row = self.begun.pop(stepped.number, None)
        if row is not None:
            self._finish(row, stepped, together)
        in_eval = stepped.forwards == self.forwards and stepped.evals < self.evals
        if in_eval and self._acted and not hooks.acts_in_training(self._inner):
            self._in_eval = {"in_eval": stepped.steps - 1}
            # it must be reported only once
            self._acted = False
        stepped.passes = self._num_passes
        stepped.forwards, stepped.evals = self.forwards, self.evals
        self._first_pass = None
        return None if row is None else row | self._mode()

    def _finish(self, row: Row, stepped: Stepped, together: bool) -> None:
        named = hooks.parameters_of(self._inner) if together else {}
        if stepped.by_closure:
            self._collect(row, stepped, named)
        kept = {name: p for name, p in named.items() if name in row["before"]}
        row["parameters"] = {name: fingerprint(p) for name, p in kept.items()}
        names = {id(p): name for name, p in named.items()}
        row["moments"] = stepped.moments(names) if together else {}
        if self._also and stepped.number == 0:
            row["also"] = self._beside_the_model()
        for name in row["parameters"]:
            self._backwards.known.pop(name, None)

    def _collect(
        self, row: Row, stepped: Stepped, named: dict[str, nn.Parameter]
    ) -> None:
        # add what led to the step: passes, and gradients as the optimizer gets them
        held = stepped.holds()
        mine = {name: p for name, p in named.items() if id(p) in held}
        passes = [one for one in self._passes if one.number >= stepped.passes]
        first = next((one.first for one in passes if one.first is not None), NO_FIRST)
        known = {n: g for n, g in self._backwards.known.items() if n in mine}
        if known:
            # the gradients of earlier passes were dropped
            since = min(gradient.since for gradient in known.values())
            passes = [one for one in passes if one.number >= since]
        facts = [one.told for one in passes]
        last = facts[-1] if facts else NO_PASS
        # from the first pass, then the last one, then all
        row |= {key: first[key] for key in ("random", "buffers", "broadcast_buffers")}
        row |= {key: last[key] for key in NO_PASS}
        row |= {k: [t[k] for t in facts] for k in ("inputs", "beside", "unpadded")}
        row |= {
            "forwards": self.forwards,
            "unread": next((t["unread"] for t in facts if t["unread"]), ""),
            "loss": _mean([loss for one in passes for loss in one.losses]),
            # from the optimizer
            "lr": stepped.rates(),
            "groups": stepped.settings({id(p): name for name, p in named.items()}),
            "draws": any(t["draws"] for t in facts),
            "syncs": [t["synced"] for t in facts],
        }
        trained = {name: p for name, p in mine.items() if p.requires_grad}
        seen = stepped.steps and stepped.last >= self._seen_from
        reduced = sum(one.has_backward for one in passes if one.told["synced"])
        sharded = any(map(hooks.is_in_parts, trained.values()))
        samples = [t["unlabelled"] for t in facts]
        found = {
            "reductions": 0 if sharded else reduced,
            "carried": [n for n in trained if seen and n in known and known[n].carried],
            "touched": [n for n in trained if n in known and known[n].touched],
            "replaced": last.get("replaced"),
            "unlabelled": samples if all(samples) else [],
            "sharded": sharded,
            "not_finite": any(t["not_finite"] for t in facts),
            "modules": [call for t in facts for call in t.get("modules", ())],
        }
        # most steps have none of these
        row |= {key: value for key, value in found.items() if value}
        self._collect_gradients(row, trained, stepped.grad_scale(), last["synced"])

    def _collect_gradients(
        self, row: Row, trained: dict[str, nn.Parameter], scale: float, synced: Any
    ) -> None:
        # not all at once: unscaled gradients are copies
        gradients = {
            name: fingerprint(p.grad if scale == 1 else p.grad / scale)
            for name, p in trained.items()
            if p.grad is not None
        }
        own, passes = self._backwards.take([*trained])
        if synced is False:
            # no pass synchronized, so the gradients are this rank's own
            own = {name: gradient["sketch"] for name, gradient in gradients.items()}
        elif passes:
            row["passes"] = passes
        row["own"], row["gradients"] = own, gradients
        row["without_gradient"] = [name for name in trained if name not in gradients]


def _mean(losses: list[Tensor | float]) -> float | None:
    values = [float(torch.as_tensor(loss).double().mean()) for loss in losses]
    return sum(values) / len(values) if values else None
