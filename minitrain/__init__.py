"""minitrain: a reproducible laboratory for data-parallel training.

Importing the package is cheap on purpose (no torch): stages that only handle
text or tables start in a fraction of a second.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
__all__ = ["check_data_parallel"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("minitrain.check"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
