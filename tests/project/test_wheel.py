"""The wheel with torch, without the extra `lab`, outside the clone."""

import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from email.parser import Parser
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pages import blocks
from project import ROOT, copy_project
from thorough import thorough_after

import minitrain

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
pytestmark = pytest.mark.slow
PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input")

RECORDED = """
import sys

import torch

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[1]))
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(5, 3)).square().mean().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a whole project: setuptools has to choose, and leaves a folder behind."""
    folder = tmp_path_factory.mktemp("wheel")
    source, built = copy_project(folder / "source"), folder / "built"
    # with the setuptools that is here: its own would come from the network
    alone = ("--no-deps", "--no-index", "--no-build-isolation")
    run(sys.executable, *PIP, "wheel", *alone, "--wheel-dir", built, source)
    (path,) = built.iterdir()
    return path


def needed_by(*requirements: str) -> set[str]:
    """Return the distributions that pip installs for ``requirements``."""
    found: set[str] = set()
    waiting = [*requirements]
    while waiting:
        one = Requirement(waiting.pop())
        name = canonicalize_name(one.name)
        applies = one.marker is None or one.marker.evaluate({"extra": ""})
        if applies and name not in found:
            found.add(name)
            waiting += distribution(name).requires or []
    return found


@pytest.fixture(scope="module")
def bin_folder(wheel: Path) -> Path:
    """Commands of an environment that has the wheel, and by links what it needs."""
    folder = wheel.parents[1] / "environment"
    venv.create(folder, symlinks=True)
    own = folder / "bin/python"
    alone = ("--no-deps", "--no-index", "--no-compile")
    run(sys.executable, *PIP, "--python", own, "install", *alone, wheel)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in needed_by(*PROJECT["dependencies"]):
        files = distribution(name).files or []
        # no scripts, and no .pth, by which setuptools would be imported
        for top in {f.parts[0] for f in files} - {"..", "__pycache__"}:
            if not (site / top).exists() and not top.endswith(".pth"):
                (site / top).symlink_to(distribution(name).locate_file(top))
    return own.parent


def run(
    *command: str | Path, folder: Path | None = None, expect: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run it as from a new shell, and hold it to its exit code."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        command, cwd=folder, env=clean, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == expect, done.stdout + done.stderr
    return done


def test_wheel_holds_the_library_and_nothing_else(wheel: Path) -> None:
    source = wheel.parents[1] / "source"
    names = zipfile.ZipFile(wheel).namelist()
    library = {name for name in names if name.startswith("minitrain/")}
    files = {p for p in (source / "minitrain").rglob("*") if p.is_file()}
    assert library == {p.relative_to(source).as_posix() for p in files}
    about = f"minitrain-{minitrain.__version__}.dist-info/"
    assert {n for n in names if not n.startswith(about)} == library
    assert f"{about}licenses/LICENSE" in names
    said = Parser().parsestr(zipfile.ZipFile(wheel).read(f"{about}METADATA").decode())
    assert said["Version"] == minitrain.__version__
    assert said["Requires-Python"] == PROJECT["requires-python"]
    required = [r for r in said.get_all("Requires-Dist", []) if "extra" not in r]
    assert sorted(required) == PROJECT["dependencies"]


def test_at_most_ten_distributions_are_added_to_torch() -> None:
    added = needed_by(*PROJECT["dependencies"]) - needed_by("torch")
    assert len({"minitrain", *added}) <= 10, added
    assert added.isdisjoint({"dvc", "matplotlib", "pandas", "ruamel-yaml"})


COMMANDS = [
    ("--version", rf"^minitrain {re.escape(minitrain.__version__)}$"),
    ("check my_model.py:build", "^proven: "),
    ("doctor", r"^collectives: \d+ of \d+ probes .*, 0 wrong$"),
]


@pytest.mark.parametrize(("words", "expected"), thorough_after(2, COMMANDS))
def test_command(bin_folder: Path, tmp_path: Path, words: str, expected: str) -> None:
    page = (ROOT / "docs/how-to/own-model.md").read_text()
    model, *_ = [block for block in blocks(page) if "def build" in block.text]
    (tmp_path / "my_model.py").write_text(model.text)
    said = run(bin_folder / "minitrain", *words.split(), folder=tmp_path).stdout
    assert re.search(expected, said, re.M), said


def test_script_is_recorded_unchanged(bin_folder: Path, tmp_path: Path) -> None:
    """The imported library comes from the wheel, not from the clone."""
    code = "import minitrain, sys; print(minitrain.__file__, *sys.path)"
    file, *path = run(bin_folder / "python", "-c", code, folder=tmp_path).stdout.split()
    assert Path(file).is_relative_to(bin_folder.parent)
    assert str(ROOT) not in path
    (tmp_path / "loop.py").write_text(RECORDED)
    minitrain = bin_folder / "minitrain"
    for name, rate in (("one", "0.1"), ("other", "0.2")):
        command = ("record", f"runs/{name}", "--", bin_folder / "python")
        done = run(minitrain, *command, "loop.py", rate, folder=tmp_path)
        assert done.stderr.startswith("minitrain: recorded 4 steps")
    runs = ("runs/one", "runs/other")
    parted = run(minitrain, "verify", *runs, folder=tmp_path, expect=1).stdout
    assert parted.startswith("different at step 0: learning rate")
    page = ("--html", "page.html")
    shown = run(minitrain, "show", *runs, *page, folder=tmp_path, expect=1).stdout
    assert shown.count("1 rank, 4 steps, 3 recorded") == 2
    assert "different at step 0" in (tmp_path / "page.html").read_text()


def test_what_needs_the_lab_is_one_line(bin_folder: Path, tmp_path: Path) -> None:
    done = run(bin_folder / "minitrain", "report", folder=tmp_path, expect=2)
    line = "minitrain report needs pandas: pip install 'minitrain[lab]'"
    assert done.stderr == f"error: {line}\n"
