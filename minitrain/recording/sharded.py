"""Where ranks hold a part of each parameter, all are needed to put one together."""

from torch import nn

from minitrain.recording.hooks import is_in_parts, parameters_of
from minitrain.recording.optimizers import Optimizers, Stepped
from minitrain.recording.rules import place
from minitrain.recording.watch import Watch


def are_together(
    inner: nn.Module,
    optimizers: Optimizers,
    stepped: Stepped,
    watch: Watch,
    *,
    has_ended: bool,
) -> bool:
    """Whether the tensors of a step can be had that is recorded, and begins, or
    ``has_ended``. Only where they are in parts this waits for the other ranks.
    """
    named = parameters_of(inner)
    if not any(map(is_in_parts, named.values())):
        return True
    step = stepped.steps - has_ended
    at = place({"kind": "step", "optimizer": stepped.number, "step": step})
    at = f"the end of {at}" if has_ended else at
    return watch.meet(at, step, optimizers.parts(stepped, named))


def end_together(inner: nn.Module, watch: Watch, step: int) -> bool:
    """Whether parameters can be had at the end of a run of so many steps."""
    parts = any(map(is_in_parts, parameters_of(inner).values()))
    return not parts or watch.meet_at_the_end(step)
