"""A step as it is written down: collected from forward pass to optimizer."""

from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from minitrain.recording.backwards import Backwards, Pass
from minitrain.recording.fingerprint import digest, fingerprint
from minitrain.recording.format import Row
from minitrain.recording.hooks import (
    Wrappers,
    acts_in_training,
    has_dropout,
    innermost,
    is_in_parts,
    named_tensors,
    parameters_of,
    plain_names,
    replaced_in,
)
from minitrain.recording.inputs import Generators, random_digest, read
from minitrain.recording.modules import ModuleCalls
from minitrain.recording.optimizers import Optimizers, Stepped

# passes that are kept for a step: more than gradients are accumulated over
MOST_PASSES = 1024
# what a step without a pass has
NO_PASS: Row = {"wrapper": "", "wrapper_id": 0, "synced": None, "group": None}
NO_FIRST: Row = {"random": "", "buffers": {}, "broadcast_buffers": None, "drawn": {}}


class StepRows:
    """Collects what happens in the steps of ``inner`` that are recorded. Of all steps
    it counts the passes: ``forwards`` of the training, and ``evals`` with gradients in
    evaluation mode. ``calls`` are those of the modules within a pass, if wanted.
    """

    def __init__(
        self,
        inner: nn.Module,
        wrappers: Wrappers,
        also: Mapping[str, nn.Module],
        calls: ModuleCalls | None = None,
    ) -> None:
        self._inner, self._wrappers, self._also = inner, wrappers, also
        self.calls = calls
        self._passes: deque[Pass] = deque(maxlen=MOST_PASSES)
        # of all those of recorded steps
        self._number = 0
        self._first: Pass | None = None
        self._begun: dict[int, Row] = {}
        self._backwards, self._generators = Backwards(), Generators()
        self._listens = False
        # steps of all optimizers when hooks began to see each gradient
        self._seen_from = 0
        self.forwards = self.evals = 0
        # whether dropout or batch norm were in training mode, and the first step that
        # came from passes in evaluation mode alone after that: until it is in a row
        self._acted, self._in_eval = False, dict[str, int]()

    def pass_begins(
        self, wrapper: nn.Module | None, module: nn.Module, args: Any, options: Any
    ) -> None:
        """Note a forward pass that is about to begin."""
        told = read(module, args, options) | NO_PASS
        if wrapper is not None:
            group = getattr(wrapper, "process_group", None)
            told |= {
                "wrapper": type(wrapper).__name__,
                "synced": getattr(wrapper, "require_backward_grad_sync", None),
                "group": group.size() if isinstance(group, dist.ProcessGroup) else None,
            }
        told["wrapper_id"] = self._wrappers.count
        told["replaced"] = replaced_in(wrapper, self._inner)
        if self.calls is not None:
            self.calls.listen(self._inner, module)
        one = Pass(self._number, told)
        self._backwards.pass_begins(one)
        self._passes.append(one)
        self._number += 1
        if self._first is None:
            self._first = one
            one.first = {
                "broadcast_buffers": getattr(wrapper, "broadcast_buffers", None),
                "buffers": self._buffers(),
                "random": self._random(),
                "drawn": self._generators.drawn(),
            }

    def pass_ended(self) -> None:
        """Note the end of a forward pass."""
        if self.calls is not None:
            self.calls.forget()
            if self._passes:
                self._passes[-1].told["modules"] = self.calls.calls

    def listen(self, optimizers: Optimizers) -> None:
        """Hook the gradients that train: some may from now on."""
        self._backwards.listen(self._inner)
        if not self._listens:
            self._listens, self._seen_from = True, optimizers.steps
            self._acted = acts_in_training(self._inner)

    def forget(self) -> None:
        """Remove the hooks, and note that no step to be recorded comes next."""
        if self._listens:
            self._listens = False
            self._passes.clear()
            self._backwards.forget()
            self._generators.forget()
            # of a pass that an error ended
            if self.calls is not None:
                self.calls.forget()

    def end(self, steps: Mapping[str, int], together: bool) -> Row:
        """Return the last row; not ``together``: without parameters and buffers."""
        row = {"kind": "end", "steps": steps, "forwards": self.forwards} | self._mode()
        if together:
            named = parameters_of(self._inner)
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
            for of, tensor in named_tensors(innermost(module)).items()
        }

    def _buffers(self) -> dict[str, Row]:
        # of each its hash; of floating ones, which rounding may take apart, all
        named = plain_names(self._inner, self._inner.named_buffers())
        return {
            n: fingerprint(b) if b.is_floating_point() else {"hash": digest(b)}
            for n, b in named.items()
        }

    def _random(self) -> str:
        # the model may have been moved since the recorder was made
        return random_digest(next(self._inner.parameters()).device)

    def loss(self, loss: Tensor | float) -> None:
        """Note a loss of the last pass, as the user reports it."""
        if self._passes:
            told = loss.detach() if isinstance(loss, Tensor) else loss
            self._passes[-1].losses.append(told)

    def step_begins(
        self, stepped: Stepped, optimizers: Optimizers, together: bool
    ) -> None:
        """Begin the row of a step. Not ``together``: without its tensors."""
        named = parameters_of(self._inner) if together else {}
        held, elsewhere = stepped.holds(), optimizers.hold()
        lost = [name for name, p in named.items() if id(p) not in elsewhere]
        written = {name for name, p in named.items() if id(p) in held}
        written |= {*lost} if stepped.number == 0 else set()
        row: Row = {"kind": "step", "optimizer": stepped.number, "step": stepped.steps}
        row["before"] = {n: digest(p) for n, p in named.items() if n in written}
        # some may belong to an optimizer that is yet to make its first step
        row["not_held"] = [n for n in lost if named[n].requires_grad and stepped.steps]
        self._begun[stepped.number] = row
        if not stepped.by_closure:
            self._collect(row, stepped, named)

    def is_begun(self, stepped: Stepped) -> bool:
        """Return whether the step that it is at is recorded."""
        return stepped.number in self._begun

    def step_ended(self, stepped: Stepped, together: bool) -> Row | None:
        """Return all that is known of a step after it; None if it is not recorded."""
        row = self._begun.pop(stepped.number, None)
        if row is not None:
            self._finish(row, stepped, together)
            self._generators.step_ends()
        in_eval = stepped.forwards == self.forwards and stepped.evals < self.evals
        if in_eval and self._acted and not acts_in_training(self._inner):
            self._in_eval = {"in_eval": stepped.steps - 1}
            # it is reported once
            self._acted = False
        stepped.passes = self._number
        stepped.forwards, stepped.evals = self.forwards, self.evals
        self._first = None
        return None if row is None else row | self._mode()

    def _finish(self, row: Row, stepped: Stepped, together: bool) -> None:
        named = parameters_of(self._inner) if together else {}
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
        # what led to the step: passes, and gradients as the optimizer gets them
        held = stepped.holds()
        mine = {name: p for name, p in named.items() if id(p) in held}
        passes = [one for one in self._passes if one.number >= stepped.passes]
        first = next((one.first for one in passes if one.first is not None), NO_FIRST)
        drew = first is not NO_FIRST and self._random() != first["random"]
        known = {n: g for n, g in self._backwards.known.items() if n in mine}
        if known and not stepped.by_closure:
            # gradients of those before were dropped
            since = min(gradient.since for gradient in known.values())
            passes = [one for one in passes if one.number >= since]
        told = [one.told for one in passes]
        last = told[-1] if told else NO_PASS
        row |= {key: first[key] for key in ("random", "buffers", "broadcast_buffers")}
        row |= {key: last[key] for key in NO_PASS}
        row |= {key: [t[key] for t in told] for key in ("inputs", "beside", "unpadded")}
        row |= {
            "forwards": self.forwards,
            "unread": next((t["unread"] for t in told if t["unread"]), ""),
            "loss": _mean([loss for one in passes for loss in one.losses]),
            "lr": stepped.rates(),
            "groups": stepped.settings({id(p): name for name, p in named.items()}),
            # in forward passes, losses and backward passes
            "draws": drew,
            "syncs": [t["synced"] for t in told],
        }
        trained = {name: p for name, p in mine.items() if p.requires_grad}
        is_seen = stepped.steps and stepped.last >= self._seen_from
        reduced = sum(one.has_backward for one in passes if one.told["synced"])
        is_sharded = any(map(is_in_parts, trained.values()))
        samples = [t["unlabelled"] for t in told]
        found = {
            "reductions": 0 if is_sharded else reduced,
            "carried": [
                n for n in trained if n in known and known[n].carried and is_seen
            ],
            "touched": [n for n in trained if n in known and known[n].touched],
            "replaced": last.get("replaced"),
            "unlabelled": samples if all(samples) else [],
            "sharded": is_sharded,
            "not_finite": any(t["not_finite"] for t in told),
            "modules": [call for t in told for call in t.get("modules", ())],
            "drawn": first["drawn"],
            "dropout": drew and has_dropout(self._inner),
        }
        # few steps have these, and rows only of these
        row |= {key: value for key, value in found.items() if value}
        waits = last["synced"] is False
        self._collect_gradients(row, trained, stepped.grad_scale(), waits)

    def _collect_gradients(
        self, row: Row, trained: dict[str, nn.Parameter], scale: float, waits: bool
    ) -> None:
        # one at a time: unscaled ones are copies
        gradients = {
            name: fingerprint(p.grad if scale == 1 else p.grad / scale)
            for name, p in trained.items()
            if p.grad is not None
        }
        own, passes = self._backwards.take([*trained])
        if waits:
            # there was none that synchronized, so they are this rank's own
            own = {name: gradient["sketch"] for name, gradient in gradients.items()}
        elif passes:
            row["passes"] = passes
        row["own"], row["gradients"] = own, gradients
        row["without_gradient"] = [name for name in trained if name not in gradients]


def _mean(losses: list[Tensor | float]) -> float | None:
    values = [float(torch.as_tensor(loss).double().mean()) for loss in losses]
    return sum(values) / len(values) if values else None
