"""A step as it is written down: collected from forward pass to optimizer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from minitrain.recording.backwards import Backwards
from minitrain.recording.fingerprint import digest, fingerprint
from minitrain.recording.format import Row
from minitrain.recording.hooks import (
    Wrappers,
    innermost,
    is_in_parts,
    named_tensors,
    parameters_of,
    plain_names,
    replaced_in,
)
from minitrain.recording.inputs import (
    Generators,
    are_finite,
    mean_loss,
    random_digest,
    read,
    unlabelled,
)
from minitrain.recording.modes import has_dropout
from minitrain.recording.optimizers import IDLE, Optimizers, Stepped
from minitrain.recording.own_gradients import OwnSketches


@dataclass
class Pass:
    """A forward pass: the samples it was given, also ``unpadded``, and what stood
    ``beside`` them, or why that is ``unread``, and the wrapper around it. What is known
    of the first one of a step alone is None else.
    """

    inputs: list[str]
    beside: str = ""
    unpadded: list[list[str]] = field(default_factory=list)
    unread: str = ""
    wrapper: str = ""
    wrapper_id: int = 0
    synced: bool | None = None
    broadcast_buffers: bool | None = None
    group: int | None = None
    random: str | None = None
    buffers: dict[str, Row] | None = None
    drawn: dict[str, str] | None = None
    finite: bool = True
    # parameters that the wrapper does not know
    replaced: dict[str, str] = field(default_factory=dict)
    # the samples without their labels, if the pass was given any
    unlabelled: list[str] = field(default_factory=list)
    # a backward pass came next
    has_backward: bool = False


class Pages:
    """Collects what happens in the steps of ``inner`` that are recorded; ``forwards``
    counts the passes of all steps.
    """

    def __init__(
        self, inner: nn.Module, wrappers: Wrappers, also: Mapping[str, nn.Module]
    ) -> None:
        self._inner, self._wrappers, self._also = inner, wrappers, also
        self._passes: list[Pass] = []
        self._losses: list[Tensor | float] = []
        # how many of both are of steps that were long ago
        self._old = 0, 0
        self._own = OwnSketches()
        self._first: Pass | None = None
        self._begun: dict[int, Row] = {}
        self._backwards, self._generators = Backwards(), Generators()
        # steps of all optimizers when hooks began to see each gradient
        self._seen_from = 0
        self.forwards = 0

    def listens(self, optimizers: Optimizers) -> None:
        """Hooks see each gradient from here on."""
        self._seen_from = optimizers.steps

    def pass_begins(
        self, wrapper: nn.Module | None, module: nn.Module, inputs: tuple[Any, Any]
    ) -> None:
        """Before a forward pass."""
        self._backwards.pass_begins((len(self._passes), len(self._losses)))
        one = Pass(*read(inputs), finite=are_finite(inputs))
        one.unlabelled = unlabelled(module, *inputs)
        if wrapper is not None:
            one.wrapper = type(wrapper).__name__
            one.synced = getattr(wrapper, "require_backward_grad_sync", None)
            one.broadcast_buffers = getattr(wrapper, "broadcast_buffers", None)
            one.group = _group_size(wrapper)
        one.wrapper_id = self._wrappers.count
        one.replaced = replaced_in(wrapper, self._inner)
        self._passes.append(one)
        if self._first is None:
            self._first = one
            one.buffers = self._buffers()
            one.random = self._random()
            one.drawn = self._generators.drawn()

    def at_the_end(self) -> Row:
        """What a run without a step to be recorded comes to: ``parameters`` after the
        last step, and ``buffers``.
        """
        named = parameters_of(self._inner)
        parameters = {name: fingerprint(p) for name, p in named.items()}
        found = {"parameters": parameters, "buffers": self._buffers()}
        return found | ({"also": self._beside_the_model()} if self._also else {})

    def _beside_the_model(self) -> dict[str, str]:
        return {
            f"{name}.{of}": digest(tensor)
            for name, module in self._also.items()
            for of, tensor in named_tensors(innermost(module)).items()
        }

    def _buffers(self) -> dict[str, Row]:
        """Of each its hash; of floating ones, which rounding may take apart, all."""
        return {
            name: fingerprint(buffer)
            if buffer.is_floating_point()
            else {"hash": digest(buffer)}
            for name, buffer in plain_names(
                self._inner, self._inner.named_buffers()
            ).items()
        }

    def _random(self) -> str:
        # the model may have been moved since the recorder was made
        return random_digest(next(self._inner.parameters()).device)

    def before_gradient(self, name: str, gradient: Tensor | None) -> None:
        """Just before a backward pass adds to this ``gradient``."""
        if self._backwards.begins() and self._passes:
            self._passes[-1].has_backward = True
        if (number := self._backwards.before(name, gradient)) == 1:
            self._own.begins(name)
        elif number and gradient is not None:
            self._own.continues(name, gradient)

    def own_gradient(self, name: str, gradient: Tensor) -> None:
        """As a backward pass leaves it, before any other rank's is mixed in. Of passes
        that are not synchronized the next has all: it adds to their gradient.
        """
        waits = bool(self._passes) and self._passes[-1].synced is False
        self._backwards.after(name, gradient, not waits)
        if waits:
            return
        self._own.add(name, gradient)

    def loss(self, loss: Tensor | float) -> None:
        """As the user tells it."""
        self._losses.append(loss.detach() if isinstance(loss, Tensor) else loss)

    def forget(self, optimizers: Optimizers) -> None:
        """No step to be recorded comes next."""
        self._own = OwnSketches()
        self._drop(len(self._passes), len(self._losses), optimizers)
        self._backwards = Backwards()
        self._generators.forget()

    def forget_old(self, optimizers: Optimizers) -> None:
        """Of what was so many steps ago no optimizer is told any more."""
        if optimizers.steps % IDLE == 0:
            self._drop(*self._old, optimizers)
            self._old = len(self._passes), len(self._losses)

    def _drop(self, passes: int, losses: int, optimizers: Optimizers) -> None:
        del self._passes[:passes], self._losses[:losses]
        self._old = 0, 0
        self._backwards.drop((passes, losses))
        for stepped in optimizers.seen:
            stepped.passes = max(0, stepped.passes - passes)
            stepped.losses = max(0, stepped.losses - losses)

    def step_begins(
        self, stepped: Stepped, optimizers: Optimizers, together: bool
    ) -> None:
        """Before the step of an optimizer that is recorded. Not ``together``: without
        its tensors.
        """
        named = parameters_of(self._inner) if together else {}
        held, elsewhere = stepped.holds(), optimizers.hold()
        mine = [name for name, p in named.items() if id(p) in held]
        lost = [name for name, p in named.items() if id(p) not in elsewhere]
        written = {*mine, *lost} if stepped.number == 0 else {*mine}
        page: Row = {"kind": "step", "optimizer": stepped.number, "step": stepped.steps}
        page["before"] = {n: digest(p) for n, p in named.items() if n in written}
        # some may belong to an optimizer that is yet to make its first step
        said = [name for name in lost if named[name].requires_grad and stepped.steps]
        page["not_held"] = said
        self._begun[stepped.number] = page
        if not stepped.by_closure:
            self._collect(page, stepped, named, mine)

    def is_begun(self, stepped: Stepped) -> bool:
        """Whether the step that it is at is recorded."""
        return stepped.number in self._begun

    def step_ended(self, stepped: Stepped, together: bool) -> Row | None:
        """After it -> all that is known of it; None where it is not recorded."""
        page = self._begun.pop(stepped.number, None)
        if page is not None:
            self._finish(page, stepped, together)
            self._generators.step_ends()
        stepped.passes, stepped.losses = len(self._passes), len(self._losses)
        self._first = None
        return page

    def _finish(self, page: Row, stepped: Stepped, together: bool) -> None:
        named = parameters_of(self._inner) if together else {}
        if stepped.by_closure:
            held = stepped.holds()
            mine = [name for name, p in named.items() if id(p) in held]
            self._collect(page, stepped, named, mine)
        kept = {name: p for name, p in named.items() if name in page["before"]}
        page["parameters"] = {name: fingerprint(p) for name, p in kept.items()}
        names = {id(p): name for name, p in named.items()}
        page["moments"] = stepped.moments(names) if together else {}
        if self._also and stepped.number == 0:
            page["also"] = self._beside_the_model()
        for name in page["parameters"]:
            self._backwards.forget(name)

    def _collect(
        self,
        page: Row,
        stepped: Stepped,
        named: dict[str, nn.Parameter],
        mine: list[str],
    ) -> None:
        """What led to the step: passes, and gradients as the optimizer gets them."""
        passes, losses = self._passes[stepped.passes :], self._losses[stepped.losses :]
        firsts = [one for one in passes if one.random is not None]
        first = firsts[0] if firsts else Pass([], random="", buffers={})
        since = [*map(self._backwards.since.get, mine)]
        known = [place for place in since if place is not None]
        if known and not stepped.by_closure:
            # gradients of those before were dropped
            dropped = min(known)
            passes = passes[max(0, dropped[0] - stepped.passes) :]
            losses = losses[max(0, dropped[1] - stepped.losses) :]
        last = passes[-1] if passes else first
        page |= {
            "forwards": self.forwards,
            "inputs": [one.inputs for one in passes],
            "beside": [one.beside for one in passes],
            "unpadded": [one.unpadded for one in passes],
            "unread": next((one.unread for one in passes if one.unread), ""),
            "loss": mean_loss(losses),
            "lr": stepped.rates(),
            "groups": stepped.settings({id(p): name for name, p in named.items()}),
            # in forward passes, losses and backward passes
            "draws": bool(firsts) and self._random() != first.random,
            "random": first.random,
            "wrapper": last.wrapper,
            "wrapper_id": last.wrapper_id,
            "synced": last.synced,
            "syncs": [one.synced for one in passes],
            "broadcast_buffers": first.broadcast_buffers,
            "group": last.group,
            "buffers": first.buffers,
        }
        trained = {name: named[name] for name in mine if named[name].requires_grad}
        page |= self._findings(stepped, passes, trained)
        if first.drawn:
            page["drawn"] = first.drawn
        if page["draws"] and has_dropout(self._inner):
            page["dropout"] = True
        self._collect_gradients(page, trained, stepped.grad_scale(), last)

    def _findings(
        self, stepped: Stepped, passes: list[Pass], trained: dict[str, nn.Parameter]
    ) -> Row:
        """What few steps have, and rows only of these."""
        of = self._backwards
        is_seen = stepped.steps and stepped.last >= self._seen_from
        reduced = sum(one.has_backward for one in passes if one.synced)
        is_sharded = any(map(is_in_parts, trained.values()))
        found: Row = {
            "reductions": 0 if is_sharded else reduced,
            "carried": [n for n in trained if n in of.carried and is_seen],
            "touched": [n for n in trained if n in of.touched],
            "replaced": passes[-1].replaced if passes else {},
            "unlabelled": [one.unlabelled for one in passes],
            "sharded": is_sharded,
            "not_finite": not all(one.finite for one in passes),
        }
        if not all(found["unlabelled"]):
            del found["unlabelled"]
        return {key: value for key, value in found.items() if value}

    def _collect_gradients(
        self, page: Row, trained: dict[str, nn.Parameter], scale: float, last: Pass
    ) -> None:
        # one at a time: unscaled ones are copies
        gradients = {
            name: fingerprint(p.grad if scale == 1 else p.grad / scale)
            for name, p in trained.items()
            if p.grad is not None
        }
        own, passes = self._own.take([*trained])
        if last.synced is False:
            # there was none that synchronized, so they are this rank's own
            own = {name: gradient["sketch"] for name, gradient in gradients.items()}
        elif passes:
            page["passes"] = passes
        page["own"], page["gradients"] = own, gradients
        page["without_gradient"] = [name for name in trained if name not in gradients]


def _group_size(wrapper: nn.Module) -> int | None:
    """Among how many ranks a wrapper averages; None where it does not tell."""
    group = getattr(wrapper, "process_group", None)
    return group.size() if isinstance(group, dist.ProcessGroup) else None
