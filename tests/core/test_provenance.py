import hashlib
import os
import re
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from dvc.repo import Repo
from one_line import refusal
from project import ROOT, git

from minitrain.core import provenance as module
from minitrain.core.provenance import (
    bits_depend_on,
    code_sha256,
    machine,
    peak_memory_mb,
    provenance,
    require_one_machine,
    require_same_build,
    require_torch,
)


def test_any_build_of_the_release_and_no_other_will_do(monkeypatch) -> None:
    import torch

    release = torch.__version__.split("+")[0]
    require_torch(release)
    for build in ("2.13.0", "2.13.0+cu130"):
        monkeypatch.setattr(module, "version", lambda _, build=build: build)
        require_torch("2.13.0")
        for pinned in ("2.12.0", "2.13.1", "2.13.0a0", "12.13.0"):
            assert refusal(require_torch, pinned) == (
                f"params.yaml: environment.torch = {pinned!r}: must be the release "
                "that is installed, '2.13.0'"
            )


def test_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    found = machine()
    keys = ["cpu", "gpu", "cores", "memory_gib", "kernel", "python", "torch"]
    assert [*found] == keys
    assert all(value for key, value in found.items() if key != "gpu")
    assert machine("Example GPU") == found | {"gpu": "Example GPU"}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5})
    assert machine()["cores"] == 1


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in {
        ".dvc/config": "",
        "dvc.yaml": STAGES,
        "params.yaml": "model: {file: mine/net.py}\n",
        "requirements.lock": "torch\n",
        "stages/train.py": "import library.loop\n",
        "library/loop.py": "steps = 1\n",
        "mine/net.py": "width = 1\n",
        "data/rows.csv": "1\n",
        "metrics.json": "{}\n",
        "studies/peers/dvc.yaml": STUDY,
        "studies/peers/measure.py": "import library\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message", "All")
    return tmp_path


STAGES = """
stages:
  other: {cmd: python -m stages.other, deps: [library/other.py]}
  train:
    matrix: {world_size: [1, 2]}
    cmd: stages/python -m stages.train --world-size ${item.world_size}
    deps:
      - data
      - data/world-${item.world_size}
      - ${model.file}
      - stages/train.py
      - library/loop.py
      - params.yaml
"""
STUDY = """
stages:
  measure:
    cmd: MINITRAIN_VENV=.venv-peers ../../stages/python measure.py
    deps: [measure.py, ../../library, ../../params.yaml]
"""


def md5sums(folder: Path, *names: str) -> str:
    """Return the SHA-256 of the output of ``md5sum`` for files, sorted by name."""
    md5 = [hashlib.md5((folder / name).read_bytes()).hexdigest() for name in names]
    lines = [f"{one}  {name}\n" for one, name in zip(md5, names, strict=True)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def test_code_is_what_the_stage_of_the_script_depends_on(project: Path) -> None:
    train = project / "stages/train.py"
    names = ["library/loop.py", "mine/net.py", "stages/train.py"]
    assert code_sha256(train) == md5sums(project, *names)
    (project / "mine/net.py").write_text("width = 2\n")
    assert code_sha256(train) == md5sums(project, *names)


def test_code_of_a_folder_is_the_md5_that_dvc_gives_it(project: Path) -> None:
    measure = project / "studies/peers/measure.py"
    (project / "library/inner").mkdir()
    for name in ("inner/b.py", "inner.py", "inner-c.txt"):
        (project / "library" / name).write_text(name)
    (project / ".dvcignore").write_text("__pycache__\n")
    (project / "library/__pycache__").mkdir()
    (project / "library/__pycache__/loop.py").write_text("compiled")
    with Repo(str(project)) as repo:
        (stage,) = repo.stage.load_all(str(project / "studies/peers/dvc.yaml"))
        stage.save_deps()
        folder = next(d for d in stage.deps if d.def_path.endswith("library"))
        md5s = {"library": folder.hash_info.value}
    md5s["studies/peers/measure.py"] = hashlib.md5(measure.read_bytes()).hexdigest()
    lines = "".join(f"{md5}  {name}\n" for name, md5 in md5s.items())
    assert md5s["library"].endswith(".dir")
    assert code_sha256(measure) == hashlib.sha256(lines.encode()).hexdigest()


def test_a_script_of_no_stage_has_no_code(project: Path, tmp_path: Path) -> None:
    assert code_sha256(project / "stages/unknown.py") is None
    (project / "dvc.yaml").unlink()
    assert code_sha256(project / "stages/train.py") is None
    # outside a project
    assert code_sha256(Path("/nowhere/train.py")) is None


def test_commit_is_dirty_only_where_code_differs(project: Path) -> None:
    # the script's commit, from any working folder
    train = project / "stages/train.py"
    commit = provenance(train)["git_commit"]
    assert re.fullmatch(r"[0-9a-f]{40}", commit)
    # outputs that DVC removes, and files edited at any time
    (project / "metrics.json").unlink()
    (project / "data/rows.csv").write_text("2\n")
    (project / "notes.txt").write_text("new")
    assert provenance(train)["git_commit"] == commit
    code = ["params.yaml", "requirements.lock", "dvc.yaml", "mine/net.py"]
    code += ["studies/peers/dvc.yaml", "mine/new.py"]
    for name in code:
        path = project / name
        before = path.read_text() if path.exists() else None
        path.write_text(f"{before or ''}# changed\n")
        assert provenance(train)["git_commit"] == f"{commit}-dirty", name
        path.unlink() if before is None else path.write_text(before)
        assert provenance(train)["git_commit"] == commit, name


def test_without_git_there_is_no_commit(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert provenance(tmp_path / "train.py")["git_commit"] is None
    monkeypatch.setenv("PATH", "")
    assert provenance(ROOT / "stages/train.py")["git_commit"] is None


def test_states_of_one_build_may_be_compared() -> None:
    here = bits_depend_on(1)
    assert here == {
        "cpu": machine()["cpu"],
        "torch": version("torch"),
        "threads_per_process": 1,
    }
    require_same_build({})
    require_same_build({name: bits_depend_on(1) for name in "abc"})
    for key, known in here.items():
        without = {name: here[name] for name in here if name != key}
        for other in (without, here | {key: "another"}):
            line = refusal(require_same_build, {"run.json": here, "replay.json": other})
            differs = f"{key} = {other.get(key)!r}, but {known!r} in run.json"
            assert line.startswith(f"replay.json: {differs}: bits of")


def test_measurements_of_one_machine_may_be_compared() -> None:
    here = {"machine": machine()}
    one = {"gloo-1": here | {"measured_at": "then"}, "gloo-2": here}
    require_one_machine(one)
    other = {"machine": machine() | {"kernel": "another"}}
    line = refusal(require_one_machine, one | {"gloo-4": other})
    differs = f"kernel = 'another', but {machine()['kernel']!r} in gloo-1"
    assert line.startswith(f"gloo-4: {differs}: measured on another machine")
    assert line.endswith("dvc repro --force")


def test_peak_memory_holds_what_was_allocated_and_stays() -> None:
    before = peak_memory_mb()
    block = np.ones(8_000_000)  # 64 MB
    with_block = peak_memory_mb()
    del block
    assert before > 10
    assert with_block >= 64
    # the kernel counts pages in batches: the figure may waver by less than a megabyte
    assert peak_memory_mb() > with_block - 1
