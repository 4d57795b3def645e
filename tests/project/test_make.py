"""What `make` runs: the install, the pipeline, the five lines at its end."""

import re
import shutil
import subprocess
from pathlib import Path

from project import ROOT, environment

CPU_INDEX = "--extra-index-url https://download.pytorch.org/whl/cpu"
PYPROJECT = (ROOT / "pyproject.toml").read_text()


def would_run(*arguments: str, **variables: str) -> list[str]:
    """The commands of a make that runs none, as if nothing were there yet."""
    command = ["make", "--dry-run", "--always-make", *arguments]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(**{"CPU": "", **variables}),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


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


def test_progress_of_pip_is_seen() -> None:
    lines = would_run(".venv/installed")
    pip = [i for i, line in enumerate(lines) if "-m pip" in line]
    assert len(pip) == 2
    assert not any("--quiet" in lines[i] for i in pip)
    # what it is silent about is said before
    assert any("nothing for a minute" in line for line in lines[: pip[0]])
    # and nothing else waits for a network
    assert "--no-build-isolation" in lines[pip[1]]


def test_setuptools_that_builds_comes_with_the_lock() -> None:
    """As a requirement of torch's, which is as new as the build asks for."""
    from importlib.metadata import requires

    def floor(requirement: str) -> int:
        return int(re.findall(r"setuptools>=(\d+)", requirement)[0])

    (of_torch,) = [one for one in requires("torch") or () if "setuptools" in one]
    assert ";" not in of_torch
    built_by = re.findall(r'^requires = \["(.+)"\]$', PYPROJECT, re.MULTILINE)
    assert [floor(one) for one in built_by] == [77]
    assert floor(of_torch) >= 77


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
    done = subprocess.run(
        ["make"], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
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
    done = subprocess.run(
        ["make", "study-nois"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    first, _ = done.stderr.splitlines()
    assert first == "error: no study nois: must be one of noise zoo"
    assert done.stdout == ""
