"""Training and evaluation mode: steps that are made in the latter by mistake."""

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from minitrain.recording.optimizers import Stepped


def acts_in_training(module: nn.Module) -> bool:
    """Return whether ``module`` computes something else in evaluation mode."""
    if isinstance(module, _DropoutNd):
        return module.p > 0
    # of attention and of recurrent layers
    share = getattr(module, "dropout", None)
    drops = isinstance(share, float) and share > 0
    return drops or (isinstance(module, _NormBase) and module.track_running_stats)


def has_dropout(inner: nn.Module) -> bool:
    """Return whether a dropout module of ``inner`` draws random numbers now."""
    modules = inner.modules()
    return any(isinstance(m, _DropoutNd) and m.training and m.p > 0 for m in modules)


class Modes:
    """Forward passes with gradients that ``inner`` makes in evaluation mode.

    ``since`` is the first step that came from such passes alone, although dropout or
    batch norm were in training mode before; None once it is in a row.
    """

    def __init__(self, inner: nn.Module) -> None:
        self._inner = inner
        self.passes = 0
        self.since: int | None = None
        self._acted = False

    def trains(self) -> None:
        """Look at the model in a pass of the training."""
        self._acted = self._acts()

    def step_ended(self, stepped: Stepped, forwards: int) -> None:
        """Note the passes of a step, of which ``forwards`` were of the training."""
        in_eval = stepped.forwards == forwards and stepped.evals < self.passes
        if in_eval and self._acted and self.since is None and not self._acts():
            self.since = stepped.steps - 1
            # it is reported once
            self._acted = False
        stepped.forwards, stepped.evals = forwards, self.passes

    def row(self) -> dict[str, int]:
        """Return what the next row has to say of it."""
        since, self.since = self.since, None
        return {} if since is None else {"in_eval": since}

    def _acts(self) -> bool:
        return any(m.training and acts_in_training(m) for m in self._inner.modules())
