"""Every stage prints its first line before it imports anything."""

import ast
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from project import ROOT, load_yaml, write_script
from waiting import GENEROUS_S


def commands() -> Iterator[tuple[str, str]]:
    """The folder of every dvc.yaml, and each command in it."""
    for file in [ROOT / "dvc.yaml", *sorted(ROOT.glob("studies/*/dvc.yaml"))]:
        folder = file.parent.relative_to(ROOT).as_posix()
        for stage in load_yaml(file)["stages"].values():
            command = stage["cmd"].replace("${item.world_size}", "2")
            yield folder, command.replace("exec ", "")


@pytest.fixture
def slow_project(tmp_path: Path) -> Path:
    """The scripts, and Pythons in which every import takes longer than one waits."""
    for name in ("stages", "studies"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for venv in (".venv", ".venv-peers"):
        write_script(tmp_path / venv / "bin/python", "exec sleep 60")
    return tmp_path


@pytest.mark.slow
def test_first_line_comes_before_python(slow_project: Path) -> None:
    for folder, command in commands():
        line, expected = first_line(slow_project, folder, command)
        assert line == expected, f"{folder}: {command}"
        # of a narrow terminal
        assert folder != "." or len(line) < 80, line


def first_line(slow_project: Path, folder: str, command: str) -> tuple[str, str]:
    """The first line of a stage that cannot import anything, and the expected one."""
    started = time.monotonic()
    words = command.split()
    with_venv = [words.pop(0)] if "=" in words[0] else []
    process = subprocess.Popen(
        words,
        cwd=slow_project / folder,
        env={**os.environ, **dict(one.split("=") for one in with_venv)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr
        line = process.stderr.readline()
    finally:
        process.kill()
        process.communicate()
    assert time.monotonic() - started < GENEROUS_S
    script = words[1] if words[1] != "-m" else words[2].replace(".", "/") + ".py"
    said = ast.get_docstring(ast.parse((ROOT / folder / script).read_text()))
    assert said
    return line, said.splitlines()[0].rstrip(".:") + " ...\n"
