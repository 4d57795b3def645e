"""The flight recorder: what any training loop computed, written down as it runs.

``minitrain.record(...)`` is a call, and ``minitrain.record`` this package: so it can be
called.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        # named in a string: what only reads recordings needs no recorder
        return import_module("minitrain.record.recorder").record(*args, **options)

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        # by its name, as other modules: for functions that are sent to new processes
        return import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Callable
