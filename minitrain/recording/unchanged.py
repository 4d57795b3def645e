"""Recording of an unchanged script: ``minitrain record FOLDER -- COMMAND``.

The model is the first module that is called in training mode while an optimizer holds a
parameter of it. Its recording begins with that call, and ends when the process group is
destroyed or the process exits.
"""

import atexit
import gc
import json
import os
import sys
from functools import wraps
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from threading import current_thread, main_thread
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from minitrain.core.errors import UserError
from minitrain.core.printable import print_note
from minitrain.recording.startup import SETTINGS

TRAINS_AGAIN = (
    "minitrain: note: a callback records one training, and {} has it: add another "
    "callback, with another folder, for another one"
)


def prepare() -> None:
    """Patch ``nn.Module`` to start a recording at the first training pass of a model,
    and what may end it: ``destroy_process_group`` and ``sys.exit``. The arguments of
    :func:`minitrain.record` are read from the environment, as JSON.
    """
    settings = json.loads(os.environ[SETTINGS])
    call, destroy, leave = nn.Module.__call__, dist.destroy_process_group, sys.exit
    watches, recorder = True, None

    @wraps(call)
    def watched(module: nn.Module, *args: Any, **options: Any) -> Any:
        nonlocal watches, recorder
        # a compiled model keeps this function
        is_on = not torch.compiler.is_compiling() and watches
        may_train = is_on and module.training and torch.is_grad_enabled()
        # modules of data loaders, which have no parameters, are called often
        if not may_train or not any(p.requires_grad for p in module.parameters()):
            return call(module, *args, **options)
        # not within this pass, too: the search takes long
        watches = False
        found = not _held().isdisjoint(map(id, module.parameters()))
        if found:
            # before the pass, which is recorded by the hooks that this adds
            nn.Module.__call__ = call  # type: ignore[method-assign]
            recorder = _record(module, settings)
        try:
            return call(module, *args, **options)
        finally:
            watches = not found

    @wraps(destroy)
    def stop_before(group: Any = None) -> None:
        if recorder is not None and (group is None or group is dist.group.WORLD):
            recorder.stop()
        destroy(group)

    @wraps(leave)
    def leave_with(code: Any = None, /) -> None:
        # Hydra leaves so after an error, of which no other trace is left at exit
        if recorder is not None and current_thread() is main_thread():
            recorder.left = SystemExit(code)
        leave(code)

    nn.Module.__call__ = watched  # type: ignore[method-assign]
    dist.destroy_process_group, sys.exit = stop_before, leave_with  # type: ignore[assignment]


def _record(model: nn.Module, settings: dict[str, Any]) -> Any:
    recorder = None
    try:
        from minitrain.recording.recorder import Recorder

        recorder = Recorder(model, None, **settings)
        recorder.start()
        recorder.connected()
    # any error: the training goes on without a recording, unless other ranks wait
    except Exception as error:
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        if kind and recorder is not None and recorder.is_awaited():
            raise
        text = " ".join(f"{kind}{error}".split())
        print_note(f"minitrain: nothing is recorded: {text}")
        return None
    held = _held()
    if others := len(held.difference(map(id, model.parameters()))):
        print_note(
            f"minitrain: note: {others} of {len(held)} parameters of the optimizers "
            f"are not in {type(model).__name__}: use minitrain.record in the script"
        )
    stop_at_exit(recorder)
    return recorder


def stop_at_exit(recorder: Any) -> None:
    """Stop ``recorder`` as the process exits; after an error, write no last row."""
    if parent_process() is None:
        atexit.register(_stop, recorder)
    else:
        # a fork runs no function of atexit; the error is the running exception here
        Finalize(None, _stop, [recorder], exitpriority=0)


def _stop(recorder: Any) -> None:
    error = sys.exception() or getattr(sys, "last_value", recorder.left)
    # torch's spawn ends a process after an error by an exit code
    is_clean = isinstance(error, SystemExit) and not error.code
    recorder.close(failed=error is not None and not is_clean)


def _held() -> set[int]:
    found = [one for one in gc.get_objects() if issubclass(type(one), Optimizer)]
    groups = [group for one in found for group in one.param_groups]
    return {id(p) for group in groups for p in group["params"]}
