"""Rows (JSON lines) of a recording: the header, one for each recorded step, the end.

:class:`StepRows` writes the row of a step (fields.py has all keys). It holds

* ``before``, hashes of the optimizer's parameters as the step begins;
* facts of the training passes (passes.py): samples, wrapper, random state, loss;
* the optimizer's learning rates and settings (optimizers.py);
* ``own``, the rank's gradients before the reduction (backwards.py), and the
  ``gradients`` that the optimizer gets;
* ``parameters``, and hashes of the optimizer's state, as the step ends.
"""

import os
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from minitrain.recording import hooks
from minitrain.recording.fingerprint import BINS, digest, fingerprint
from minitrain.recording.format import VERSION, Row
from minitrain.recording.optimizers import Optimizers, Stepped
from minitrain.recording.passes import Passes, fingerprints_of_buffers
from minitrain.recording.twin import is_twin

# what a row has of a step without a forward pass: of the last pass, and of the first
NO_PASS: Row = {"wrapper": "", "wrapper_id": 0, "synced": None, "group": None}
NO_FIRST: Row = {"random": "", "buffers": {}, "broadcast_buffers": None}


def rank_and_size() -> tuple[int, int]:
    """Return rank and world size, by torch.distributed or torchrun's environment."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def header_of(inner: nn.Module, every: int) -> Row:
    """Return the header: settings, and shapes and hashes of the parameters of the model
    ``inner``, without wrappers. Collective if parameters are sharded.
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


class StepRows:
    """Write the rows of recorded steps of ``inner``, the model without wrappers, and
    its last row. ``also``: other modules to hash, by name. ``begun``: the unfinished
    row of each optimizer that is in a recorded step, by the optimizer's number.
    """

    def __init__(
        self, inner: nn.Module, also: Mapping[str, nn.Module], passes: Passes
    ) -> None:
        self._inner, self._also, self._passes = inner, also, passes
        self.begun: dict[int, Row] = {}

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
        # a parameter in no optimizer stands in the rows of the first one
        written |= {*lost} if stepped.number == 0 else set()
        row: Row = {"kind": "step", "optimizer": stepped.number, "step": stepped.steps}
        row["before"] = {n: digest(p) for n, p in named.items() if n in written}
        # at step 0 they may belong to an optimizer that has not made a step yet
        row["not_held"] = [n for n in lost if named[n].requires_grad and stepped.steps]
        self.begun[stepped.number] = row
        if not stepped.by_closure:
            self._add_causes(row, stepped, named)

    def step_ended(self, stepped: Stepped, together: bool) -> Row | None:
        """Return the finished row of a step; None if it is not recorded."""
        row = self.begun.pop(stepped.number, None)
        if row is not None:
            named = hooks.parameters_of(self._inner) if together else {}
            if stepped.by_closure:
                self._add_causes(row, stepped, named)
            self._add_effects(row, stepped, named)
        self._passes.step_ended(stepped)
        return row

    def end(self, steps: Mapping[str, int], together: bool) -> Row:
        """Return the last row. ``steps``: of each optimizer, by its number. With
        ``together`` it has parameters and buffers: collective if they are sharded.
        """
        row = {"kind": "end", "steps": steps, "forwards": self._passes.forwards}
        if together:
            named = hooks.parameters_of(self._inner)
            row["parameters"] = {name: fingerprint(p) for name, p in named.items()}
            row["buffers"] = fingerprints_of_buffers(self._inner)
            row |= {"also": self._beside_the_model()} if self._also else {}
        return row

    def _beside_the_model(self) -> dict[str, str]:
        found = {}
        for name, module in self._also.items():
            inner = hooks.innermost(module)
            tensors = [*inner.named_parameters(), *inner.named_buffers()]
            for of, tensor in hooks.plain_names(inner, tensors).items():
                found[f"{name}.{of}"] = digest(tensor)
        return found

    def _add_causes(
        self, row: Row, stepped: Stepped, named: dict[str, nn.Parameter]
    ) -> None:
        # what led to the step; one with a closure computes it itself, so at the end
        held = stepped.holds()
        mine = {name: p for name, p in named.items() if id(p) in held}
        known = self._passes.backwards.known
        known = {name: gradient for name, gradient in known.items() if name in mine}
        passes = self._passes.before(stepped)
        first = next((one.first for one in passes if one.first is not None), NO_FIRST)
        if known:
            # the gradients of earlier passes were dropped
            since = min(gradient.since for gradient in known.values())
            passes = [one for one in passes if one.number >= since]
        facts = [one.facts for one in passes]
        last = facts[-1] if facts else NO_PASS
        row |= first | {key: last[key] for key in NO_PASS}
        row |= {k: [t[k] for t in facts] for k in ("inputs", "beside", "unpadded")}
        row |= {
            "forwards": self._passes.forwards,
            "unread": next((t["unread"] for t in facts if t["unread"]), ""),
            "loss": _mean([loss for one in passes for loss in one.losses]),
            "lr": stepped.rates(),
            "groups": stepped.settings({id(p): name for name, p in named.items()}),
            "draws": any(t["draws"] for t in facts),
            "syncs": [t["synced"] for t in facts],
        }
        trained = {name: p for name, p in mine.items() if p.requires_grad}
        sharded = any(map(hooks.is_in_parts, trained.values()))
        reductions = sum(one.has_backward for one in passes if one.facts["synced"])
        # without hooks at its last step, a gradient from before that is not recognized
        seen = stepped.steps and stepped.last >= self._passes.seen_from
        samples = [t["unlabelled"] for t in facts]
        found = {
            "reductions": 0 if sharded else reductions,
            "carried": [n for n in trained if seen and n in known and known[n].carried],
            "unlabelled": samples if all(samples) else [],
            "sharded": sharded,
            "not_finite": any(t["not_finite"] for t in facts),
            "modules": [call for t in facts for call in t.get("modules", ())],
        }
        # most steps have none of these
        row |= {key: value for key, value in found.items() if value}
        self._add_gradients(row, trained, stepped.grad_scale())

    def _add_gradients(
        self, row: Row, trained: dict[str, nn.Parameter], scale: float
    ) -> None:
        # not all at once: unscaled gradients are copies
        gradients = {
            name: fingerprint(p.grad if scale == 1 else p.grad / scale)
            for name, p in trained.items()
            if p.grad is not None
        }
        own, passes = self._passes.backwards.take([*trained])
        if row["synced"] is False:
            # no pass synchronized, so the gradients are this rank's own
            own = {name: gradient["sketch"] for name, gradient in gradients.items()}
        elif passes:
            row["passes"] = passes
        row["own"], row["gradients"] = own, gradients
        row["without_gradient"] = [name for name in trained if name not in gradients]

    def _add_effects(
        self, row: Row, stepped: Stepped, named: dict[str, nn.Parameter]
    ) -> None:
        kept = {name: p for name, p in named.items() if name in row["before"]}
        row["parameters"] = {name: fingerprint(p) for name, p in kept.items()}
        names = {id(p): name for name, p in named.items()}
        row["moments"] = stepped.moments(names) if named else {}
        if self._also and stepped.number == 0:
            row["also"] = self._beside_the_model()
        for name in kept:
            self._passes.backwards.known.pop(name, None)


def _mean(losses: list[Tensor | float]) -> float | None:
    values = [float(torch.as_tensor(loss).double().mean()) for loss in losses]
    return sum(values) / len(values) if values else None
