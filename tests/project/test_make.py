"""Commands that `make` runs: the install, the pipeline, the summary."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from project import ROOT, copy_project, load_yaml, run_in, write_script
from test_docs import written_by

from minitrain.cli import quick
from minitrain.core.params import load_params

CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def would_run(*arguments: str) -> list[str]:
    command = ["make", "--dry-run", "--always-make", *arguments]
    return run_in(ROOT, *command, CPU="").stdout.splitlines()


def install(*arguments: str) -> list[str]:
    lines = would_run(".venv/installed", *arguments)
    return [x for x in lines if "pip install" in x and " --editable" not in x]


def installed(folder: Path) -> None:
    shutil.copy(ROOT / "Makefile", folder)
    for name in ("requirements.lock", "pyproject.toml", ".venv/installed"):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.touch()


def test_cpu_build_of_torch_is_one_word() -> None:
    (rest,) = install()
    assert rest.endswith(" pip install --requirement requirements.lock")
    torch, *others = install("CPU=1")
    # nothing but torch comes from the other index
    assert re.search(rf" --no-deps --index-url {CPU_INDEX} torch==[\d.]+$", torch)
    assert others == [rest]


def test_pipeline_that_fails_has_no_summary(tmp_path: Path) -> None:
    """The error is the last word, and make's exit code is not 0."""
    *_, pipeline, summary = would_run("all")
    assert pipeline == ".venv/bin/python -P -m dvc repro"
    assert summary == ".venv/bin/minitrain summary"
    installed(tmp_path)
    for name, code in (("python", 7), ("minitrain", 0)):
        lines = f'echo {name}\n[ "$2" = -m ] && exit {code}\nexit 0'
        write_script(tmp_path / ".venv/bin" / name, lines)
    done = run_in(tmp_path, "make")
    assert done.returncode == 2
    assert done.stdout.split() == ["python", "python"]
    assert re.search(r"Error 7", done.stderr)


def test_study_that_is_none_is_one_line(tmp_path: Path) -> None:
    """The line names all studies; a folder without a pipeline is not one."""
    installed(tmp_path)
    for name in ("noise", "zoo", "__pycache__"):
        (tmp_path / "studies" / name).mkdir(parents=True)
    for name in ("noise", "zoo"):
        (tmp_path / "studies" / name / "dvc.yaml").touch()
    done = run_in(tmp_path, "make", "study-nois")
    assert done.returncode == 2
    first, _ = done.stderr.splitlines()
    assert first == "error: no study nois: must be one of noise zoo"
    assert done.stdout == ""


def test_quick_copies_what_the_pipeline_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps params.yaml unchanged; DVC itself is not run."""
    project = copy_project(tmp_path)
    stated = (project / "params.yaml").read_text()
    monkeypatch.chdir(project)
    called = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        called.append(command[-1])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(quick.subprocess, "run", run)
    monkeypatch.setattr(quick, "make_private_cache", lambda folder: folder)
    quick.main()
    assert called == ["true", "repro"]
    assert (project / "params.yaml").read_text() == stated
    few = load_params(quick.COPY / "params.yaml")
    assert (few.train.num_steps, few.baseline.num_rounds) == (20, 5)
    # the model of the studies is known by this path
    assert few.model.file == "minitrain/model/gpt.py"
    assert Path(few.corpus.source).is_absolute()
    # every dependency that no stage writes, but what stays where it is
    stages = load_yaml(project / "dvc.yaml")["stages"].values()
    written = [Path(out) for stage in stages for out in written_by(stage)]
    deps = {Path(dep) for stage in stages for dep in stage["deps"] if "$" not in dep}
    read = [
        dep
        for dep in deps
        if not any(dep.is_relative_to(o) or o.is_relative_to(dep) for o in written)
    ]
    assert Path("metrics/zoo.json") in read
    assert [dep for dep in read if not (quick.COPY / dep).exists()] == []
