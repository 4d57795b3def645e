"""Copies of the project to run stages and DVC in, with parameters small enough."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from waiting import GENEROUS_S

ROOT = Path(__file__).parents[2]
# tests have parameters of their own: those in ROOT are the user's to change
PARAMS_FILE = Path(__file__).with_name("params.yaml")

# the environment variable that names the folder of a run that was made before
MADE = "MINITRAIN_MADE_RUN"
SMALL = {
    "corpus.num_sentences": 200,
    "model.n_layer": 1,
    "model.n_head": 2,
    "model.n_embd": 16,
    "train.num_steps": 14,
    "train.num_warmup_steps": 2,
    "train.global_batch_size": 8,
    "train.hash_every": 5,
    "baseline.num_rounds": 5,
    "baseline.steps_per_round": 1,
}
# folders that no stage reads
IDLE = ("studies", "tests", "docs", "launch", "examples")


def copy_project(
    folder: Path, changes: dict[str, Any] | None = None, without: Sequence[str] = ()
) -> Path:
    """Copy the project's tracked files to ``folder`` as a git repository, with small
    parameters, and without these files and folders.
    """
    left_out = {"dvc.lock", *without}
    listed = git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard")
    for name in listed.splitlines():
        if (ROOT / name).is_file() and name.partition("/")[0] not in left_out:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)
    git(folder, "init", "--quiet")
    shutil.copy(PARAMS_FILE, folder / "params.yaml")
    set_params(folder, {**SMALL, **(changes or {})})
    return folder


def load_yaml(path: Path) -> Any:
    return YAML(typ="safe").load(path.read_text(encoding="utf-8"))


def set_params(folder: Path, changes: dict[str, Any]) -> None:
    """Set dotted keys of ``folder``'s params.yaml, new ones included."""
    yaml, path = YAML(), folder / "params.yaml"
    document = yaml.load(path.read_text())
    for key, value in changes.items():
        section, _, name = key.partition(".")
        if name:
            document.setdefault(section, {})[name] = value
        else:
            document[section] = value
    with open(path, "w") as file:
        yaml.dump(document, file)


MAKES = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}


def environment(**variables: str) -> dict[str, str]:
    """Return this process's environment with its Python first on the path, without
    variables of a make that runs the tests.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {name: value for name, value in os.environ.items() if name not in MAKES}
    return {**own, "PATH": path, **variables}


def run_in(
    folder: Path,
    *command: str | Path,
    timeout_s: float = GENEROUS_S,
    given: str = "",
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run a command in ``folder``, with ``given`` as its input and these environment
    variables.
    """
    return subprocess.run(
        command,
        cwd=folder,
        env=environment(**variables),
        input=given,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def run_python(
    *arguments: str | Path, folder: Path = ROOT, **variables: str
) -> subprocess.CompletedProcess[str]:
    return run_in(folder, sys.executable, *arguments, **variables)


def write_script(path: Path, lines: str) -> None:
    """Make an executable file for the shell, and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)


def git(folder: Path, *arguments: str) -> str:
    """Return the output of ``git ...`` in ``folder``, with a made-up author."""
    somebody = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.org")
    done = run_in(folder, "git", *somebody, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def start_dvc(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start ``dvc ...`` in a copy of the project; stderr comes with stdout."""
    return subprocess.Popen(
        [sys.executable, "-m", "dvc", *arguments],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_dvc(folder: Path, *arguments: str, timeout_s: float = 280) -> tuple[int, str]:
    process = start_dvc(folder, *arguments)
    output, _ = process.communicate(timeout=timeout_s)
    return process.returncode, output
