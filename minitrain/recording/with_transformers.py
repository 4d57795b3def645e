"""The callback for the Trainer of transformers."""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from minitrain.core.printable import print_note
from minitrain.recording.recorder import Recorder
from minitrain.recording.unchanged import TRAINS_AGAIN, stop_at_exit


class TransformersCallback(TrainerCallback):  # type: ignore[misc]
    """Record the first ``trainer.train()``, with options of minitrain.record."""

    def __init__(self, folder: str | Path, **options: Any) -> None:
        self._folder, self._options = folder, options
        self._recorder: Recorder | None = None

    def on_train_begin(self, *_: Any, model: Any, **others: Any) -> None:
        """Trainer hook: start the recorder; a second training is not recorded."""
        if self._recorder is not None:
            # the Trainer tries a smaller batch after an error, for example
            self._recorder.close(failed=True)
            print_note(TRAINS_AGAIN.format(self._folder))
            return
        self._recorder = Recorder(model, None, self._folder, **self._options)
        self._recorder.start()
        # the Trainer reports no error to its callbacks
        stop_at_exit(self._recorder)

    def on_train_end(self, *_: Any, **others: Any) -> None:
        """Trainer hook: stop the recorder."""
        if self._recorder is not None:
            self._recorder.stop()
