"""Copy of the project's data and parameters for one host, and its stages."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from minitrain.core.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
CODE = ("minitrain", "stages", "launch")
DATA = ("requirements.lock", "data/verbs.csv", "params.yaml")
NOT_OURS = ("MINITRAIN_", "DVC_", "PYTHONPATH", "RANK", "MASTER_", "GLOO_")
LIMIT_S = 300


def make_project(folder: Path, changes: Mapping[str, Any]) -> None:
    """Copy the project's code, with ``changes`` to params.yaml and matching shards."""
    for name in DATA:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    for name in CODE:
        (folder / name).symlink_to(ROOT / name)
    set_params(folder, changes)
    for name in ("check", "corpus", "shard"):
        stage(folder, name)


def set_params(folder: Path, changes: Mapping[str, Any]) -> None:
    """Write dotted keys to the params.yaml in ``folder``."""
    yaml, path = YAML(), folder / "params.yaml"
    params = yaml.load(path)
    for key, value in changes.items():
        section, _, name = key.partition(".")
        params[section][name] = value
    yaml.dump(params, path)


def begin(folders: Sequence[Path], changes: Mapping[str, Any]) -> None:
    """Remove earlier runs, and write ``changes`` to the section ``train``."""
    stated = {f"train.{key}": value for key, value in changes.items()}
    for folder in folders:
        shutil.rmtree(folder / "data/runs", ignore_errors=True)
        set_params(folder, stated)


def stage(folder: Path, name: str, *options: str) -> None:
    """Run a stage of the project in ``folder`` on this host."""
    wait([start(folder, [sys.executable, "-m", f"stages.{name}", *options])], name)


def start(folder: Path, command: Sequence[str]) -> "subprocess.Popen[str]":
    """Start ``command`` in ``folder`` with a clean environment."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(NOT_OURS)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**kept, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait(running: Sequence["subprocess.Popen[str]"], what: str) -> None:
    """Wait for all processes; raises UserError with the output of one that failed."""
    try:
        said = [process.communicate(timeout=LIMIT_S)[0] for process in running]
    finally:
        for process in running:
            if process.poll() is None:
                process.terminate()
                process.wait()
    for process, one in zip(running, said, strict=True):
        if process.returncode:
            raise UserError(f"{what}: {' '.join(one.split()[-40:])}")
