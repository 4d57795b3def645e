"""Startup hook that Python imports under ``minitrain record FOLDER -- COMMAND``.

It runs the ``sitecustomize`` that would have been imported without it. When a process
imports torch, the recording is prepared; in one that never does, nothing happens.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from typing import Any


def run_the_other() -> None:
    """Run the ``sitecustomize`` that this one shadows, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = [path for path in sys.path if os.path.abspath(path) != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


class OnTorch:
    """Import hook (meta path finder): prepare the recording on import of torch."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return torch's spec, with its loader patched; None for other modules."""
        if name != "torch":
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next(filter(None, specs), None)
        if spec is None:
            return None
        loader: Any = spec.loader
        run = loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            # not in find_spec: that is also called to look for torch only
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                _prepare()

        loader.exec_module = exec_module
        return spec


def _prepare() -> None:
    try:
        from minitrain.recording.unchanged import prepare
    except ImportError as error:
        python = f"{sys.executable}: {error}"
        line = f"minitrain: nothing is recorded: no minitrain in {python}"
        print(line, file=sys.stderr, flush=True)
    else:
        prepare()


if os.environ.get("MINITRAIN_RECORD"):
    sys.meta_path.insert(0, OnTorch())
run_the_other()
