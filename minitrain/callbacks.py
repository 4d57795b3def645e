"""Callbacks for Trainers: they record a training like :func:`minitrain.record`.

For the Trainer of transformers, to record ``trainer.train()`` from start to end::

    from minitrain.callbacks import TransformersCallback
    trainer = Trainer(model, settings, callbacks=[TransformersCallback("runs/one")])

For the Trainer of Lightning, to record the loss of each step as well::

    from minitrain.callbacks import LightningCallback
    trainer = lightning.Trainer(callbacks=[LightningCallback("runs/one")])

The first access to a callback imports its library.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minitrain.recording.with_lightning import LightningCallback
    from minitrain.recording.with_transformers import TransformersCallback

__all__ = ["LightningCallback", "TransformersCallback"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        library = name.removesuffix("Callback").lower()
        return getattr(import_module(f"minitrain.recording.with_{library}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
