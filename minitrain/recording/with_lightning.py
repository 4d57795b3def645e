"""The callback for the Trainer of Lightning."""

import sys
from collections.abc import Callable, Mapping
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from minitrain.core.printable import print_note
from minitrain.recording.recorder import Recorder
from minitrain.recording.unchanged import TRAINS_AGAIN

# the two packages hold the same code; a script uses one of them
if "pytorch_lightning" in sys.modules or not find_spec("lightning"):
    from pytorch_lightning import Callback
else:
    from lightning.pytorch import Callback


class LightningCallback(Callback):  # type: ignore[misc]
    """Record each step of the first ``trainer.fit()`` into ``folder``, and its loss;
    ``options`` are passed on to :func:`minitrain.record`.

    Each ``training_step`` is recorded as the forward pass, on one rank and on several,
    so forward hooks of the module itself are called with its arguments. With manual
    optimization no loss is recorded.
    """

    def __init__(self, folder: str | Path, **options: Any) -> None:
        self._folder, self._options = folder, options

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Lightning hook: start the recorder; ``training_step`` becomes a pass."""
        if hasattr(self, "_recorder"):
            print_note(TRAINS_AGAIN.format(self._folder))
            return
        self._recorder = recorder = Recorder(
            pl_module, None, self._folder, **self._options
        )
        recorder.start()
        step, strategy = pl_module.training_step, trainer.strategy

        @wraps(step)
        def training_step(*args: Any, **options: Any) -> Any:
            # a strategy that wraps the module has made it the module's forward pass
            if strategy.model is not pl_module:
                output = step(*args, **options)
            else:
                output = _as_pass(pl_module, step, args, options)
            if pl_module.automatic_optimization and output is not None:
                loss = output["loss"] if isinstance(output, Mapping) else output
                recorder.loss(loss)
            return output

        pl_module.training_step = training_step

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Lightning hook: stop the recorder, and restore the module."""
        vars(pl_module).pop("training_step", None)
        self._recorder.stop()

    def on_exception(self, trainer: Any, pl_module: Any, exception: Any) -> None:
        """Lightning hook: close the files, as an error ends the run."""
        if hasattr(self, "_recorder"):
            self.on_train_end(trainer, pl_module)


def _as_pass(module: Any, step: Callable[..., Any], args: Any, options: Any) -> Any:
    own = {n: f for n, f in vars(module).items() if n == "forward"}

    def restore() -> None:
        vars(module).pop("forward", None)
        vars(module).update(own)

    def forward(*args: Any, **options: Any) -> Any:
        # before the step, as that may call forward itself
        restore()
        return step(*args, **options)

    module.forward = forward
    try:
        return module(*args, **options)
    finally:
        restore()
