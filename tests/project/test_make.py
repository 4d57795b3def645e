"""What `make` runs: the install, the pipeline, the five lines at its end."""

import re
import shutil
import subprocess
from pathlib import Path

from project import ROOT, environment

CPU_INDEX = "--extra-index-url https://download.pytorch.org/whl/cpu"


def would_run(*arguments: str, **variables: str) -> list[str]:
    """The commands of a make that runs none, as if nothing were there yet."""
    command = ["make", "--dry-run", "--always-make", *arguments]
    return run(*command, **{"CPU": "", **variables}).stdout.splitlines()


def run(
    *command: str, folder: Path = ROOT, **variables: str
) -> subprocess.CompletedProcess[str]:
    env = environment(**variables)
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


def install(*arguments: str, **variables: str) -> str:
    """The line that installs what requirements.lock pins."""
    lines = would_run(".venv/installed", *arguments, **variables)
    (line,) = [line for line in lines if "--requirement requirements.lock" in line]
    return line


def installed(folder: Path) -> None:
    """A project whose install is up to date."""
    shutil.copy(ROOT / "Makefile", folder)
    for name in ("requirements.lock", "pyproject.toml", ".venv/installed"):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.touch()


def test_cpu_build_of_torch_is_one_word() -> None:
    assert CPU_INDEX in install("CPU=1")
    assert CPU_INDEX in install(CPU="1")
    # else no other index is asked for anything
    for without in ((), ("CPU=0",), ("CPU=",)):
        assert "://" not in install(*without)


def test_make_ends_with_the_summary() -> None:
    *_, pipeline, summary = would_run("all")
    assert pipeline == ".venv/bin/python -P -m dvc repro"
    assert summary == ".venv/bin/minitrain summary"


def test_pipeline_that_fails_has_no_summary(tmp_path: Path) -> None:
    """The error is the last word, and make's exit code is not 0."""
    installed(tmp_path)
    for name, code in (("python", 7), ("minitrain", 0)):
        tool = tmp_path / ".venv/bin" / name
        tool.parent.mkdir(exist_ok=True)
        tool.write_text(
            f'#!/bin/sh\necho {name}\n[ "$2" = -m ] && exit {code}\nexit 0\n'
        )
        tool.chmod(0o755)
    done = run("make", folder=tmp_path)
    assert done.returncode == 2
    assert done.stdout.split() == ["python", "python"]
    assert re.search(r"Error 7", done.stderr)


def test_study_that_is_none_is_one_line(tmp_path: Path) -> None:
    """It names those that are; a folder without a pipeline is none."""
    installed(tmp_path)
    for name in ("noise", "zoo", "__pycache__"):
        (tmp_path / "studies" / name).mkdir(parents=True)
    for name in ("noise", "zoo"):
        (tmp_path / "studies" / name / "dvc.yaml").touch()
    done = run("make", "study-nois", folder=tmp_path)
    assert done.returncode == 2
    first, _ = done.stderr.splitlines()
    assert first == "error: no study nois: must be one of noise zoo"
    assert done.stdout == ""
