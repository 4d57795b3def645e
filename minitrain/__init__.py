"""minitrain: a reproducible laboratory for data-parallel training.

Importing the package is cheap on purpose (no torch): stages that only handle
text or tables start in a fraction of a second.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minitrain.check.data_parallel import Ladder, check_data_parallel
    from minitrain.core.errors import EvidenceError, RankError, UserError
    from minitrain.harness.launcher import launch
    from minitrain.recording.recorder import record
    from minitrain.recording.shown import show

__version__ = "0.3.0"
__all__ = [
    "EvidenceError",
    "Ladder",
    "RankError",
    "UserError",
    "check_data_parallel",
    "launch",
    "record",
    "show",
]

# First, since imports are slow: otherwise a rank that is stopped while it imports torch
# would outlive its launcher, and a stage would outlive DVC.
if os.environ.get("MINITRAIN_LAUNCHER_PID") == str(os.getppid()):
    import_module("minitrain.core.signals").end_with_launcher()
elif os.environ.get("MINITRAIN_STAGE", "").startswith(f"{os.getpid()} "):
    import_module("minitrain.core.signals").begin_stage()

_HOMES = {
    "EvidenceError": "core.errors",
    "Ladder": "check.data_parallel",
    "RankError": "core.errors",
    "UserError": "core.errors",
    "check_data_parallel": "check.data_parallel",
    "launch": "harness.launcher",
    "record": "recording.recorder",
    "show": "recording.shown",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"minitrain.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
