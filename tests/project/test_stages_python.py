"""The Python of the stages: which one it is, and that it finds what lies beside it."""

import shutil
import subprocess
from pathlib import Path

import pytest
from project import ROOT, environment


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a module in ``stages`` and a study of two files."""
    for folder in ("stages", "studies/mine"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / "stages/python", tmp_path / "stages")
    (tmp_path / "stages/__init__.py").touch()
    (tmp_path / "stages/hello.py").write_text("print('hello')\n")
    (tmp_path / "studies/mine/measure.py").write_text("import settings\n")
    (tmp_path / "studies/mine/settings.py").write_text("print('settings')\n")
    return tmp_path


def run(
    folder: Path, *command: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env=environment(**variables),
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("safe", ["", "1"])
def test_neighbors_are_found(project: Path, safe: str) -> None:
    """With PYTHONSAFEPATH Python itself leaves both folders out."""
    stage = ("stages/python", "-m", "stages.hello")
    done = run(project, *stage, PYTHONSAFEPATH=safe)
    assert done.stdout == "hello\n", done.stderr
    script = ("../../stages/python", "measure.py")
    done = run(project / "studies/mine", *script, PYTHONSAFEPATH=safe)
    assert done.stdout == "settings\n", done.stderr


def test_nearest_virtual_environment_above_is_used(project: Path) -> None:
    for folder in (project, project / "studies"):
        python = folder / ".venv/bin/python"
        python.parent.mkdir(parents=True)
        python.write_text(f"#!/bin/sh\necho {folder.name}\n")
        python.chmod(0o755)
    done = run(project / "studies/mine", "../../stages/python")
    assert done.stdout == "studies\n"
    assert run(project, "stages/python").stdout == f"{project.name}\n"


def test_virtual_environment_that_is_not_there_is_one_line(project: Path) -> None:
    done = run(project, "stages/python", MINITRAIN_VENV=".venv-none")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: no .venv-none above {project}; ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("script", sorted((ROOT / "stages").glob("[a-z]*.py")))
def test_what_a_stage_does_is_one_line_of_a_narrow_terminal(
    script: Path, project: Path
) -> None:
    shutil.copy(script, project / "stages/hello.py")
    done = run(project, "stages/python", "-m", "stages.hello", "--no-such-option")
    said = done.stderr.splitlines()[0]
    assert said.endswith(" ...")
    assert len(said) < 80
