"""The callback for the Trainer of transformers."""

import atexit
from functools import partial
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from minitrain.recording.recorder import Recorder
from minitrain.recording.unchanged import stop_at_exit


class TransformersCallback(TrainerCallback):  # type: ignore[misc]
    """Record each step of ``trainer.train()`` into ``folder``; ``options`` are those of
    :func:`minitrain.record`.
    """

    def __init__(self, folder: str | Path, **options: Any) -> None:
        self._folder, self._options = folder, options

    def on_train_begin(self, *_: Any, model: Any, **others: Any) -> None:
        """Start the recorder."""
        recorder = Recorder(model, None, self._folder, **self._options)
        recorder.start()
        # the Trainer reports no error to its callbacks
        self._stop = partial(stop_at_exit, recorder)
        atexit.register(self._stop)

    def on_train_end(self, *_: Any, **others: Any) -> None:
        """Stop it."""
        atexit.unregister(self._stop)
        self._stop()
