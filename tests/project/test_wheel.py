"""The wheel outside the clone: in an environment of its own, in an empty folder."""

import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from project import ROOT, copy_project

import minitrain

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
pytestmark = pytest.mark.slow
PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input")

MODEL = '''
import torch


class Output:
    def __init__(self, loss):
        self.loss = loss


class Small(torch.nn.Module):
    """By the convention of Hugging Face's causal language models."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(256, 8)
        self.head = torch.nn.Linear(8, 256)

    def forward(self, input_ids, labels):
        logits = self.head(self.embedding(input_ids))[:, :-1].flatten(0, 1)
        targets = labels[:, 1:].flatten()
        return Output(torch.nn.functional.cross_entropy(logits, targets))


def build():
    return Small()
'''
RECORDED = """
import sys

import torch

import minitrain

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[2]))
with minitrain.record(model, optimizer, sys.argv[1]):
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(5, 3)).square().mean().backward()
        optimizer.step()
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole project: setuptools has to choose, and leaves a folder behind."""
    return copy_project(tmp_path_factory.mktemp("wheel") / "source")


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    built = source.parent / "built"
    # with the setuptools that is here: its own would come from the network
    alone = ("--no-deps", "--no-index", "--no-build-isolation")
    run(sys.executable, *PIP, "wheel", *alone, "--wheel-dir", built, source)
    (path,) = built.iterdir()
    return path


@pytest.fixture(scope="module")
def bin_folder(wheel: Path) -> Path:
    """Commands of an environment that has the wheel, and the dependencies by path. No
    .pth of theirs is read, so an editable minitrain among them is not there.
    """
    folder = wheel.parents[1] / "environment"
    venv.create(folder, symlinks=True)
    own = folder / "bin/python"
    alone = ("--no-deps", "--no-index", "--no-compile")
    run(sys.executable, *PIP, "--python", own, "install", *alone, wheel)
    beside = [path for path in sys.path if Path(path).name == "site-packages"]
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text("\n".join(beside) + "\n")
    return own.parent


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    return tmp_path


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


def test_wheel_holds_the_library_and_nothing_else(source: Path, wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    library = {name for name in names if name.startswith("minitrain/")}
    files = {p for p in (source / "minitrain").rglob("*") if p.is_file()}
    assert library == {p.relative_to(source).as_posix() for p in files}
    assert "minitrain/report/templates/page.html" in library
    about = f"minitrain-{minitrain.__version__}.dist-info/"
    rest = {name for name in names if not name.startswith(about)} - library
    assert rest == set()
    assert f"{about}licenses/LICENSE" in names


def metadata(wheel: Path) -> Message:
    about = f"minitrain-{minitrain.__version__}.dist-info/METADATA"
    return Parser().parsestr(zipfile.ZipFile(wheel).read(about).decode())


def test_metadata_are_those_of_the_project(wheel: Path) -> None:
    said = metadata(wheel)
    assert said["Version"] == minitrain.__version__
    assert said["Summary"] == PROJECT["description"]
    assert said["License-Expression"] == "MIT"
    assert said["Requires-Python"] == PROJECT["requires-python"]
    assert said["Description-Content-Type"] == "text/markdown"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert said.get_payload().strip() == readme.strip()
    assert sorted(said.get_all("Requires-Dist", [])) == PROJECT["dependencies"]
    least = PROJECT["requires-python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {least}" in said.get_all(
        "Classifier", []
    )
    # there is no address of the project that would be true
    assert said["Project-URL"] is said["Home-page"] is None


def test_what_is_imported_comes_from_the_wheel(bin_folder: Path, empty: Path) -> None:
    code = "import minitrain, sys; print(minitrain.__file__, *sys.path, sep='\\n')"
    file, *path = run(bin_folder / "python", "-c", code, folder=empty).stdout.split()
    assert Path(file).is_relative_to(bin_folder.parent)
    assert str(ROOT) not in path


def test_version(bin_folder: Path, empty: Path) -> None:
    command = bin_folder / "minitrain"
    said = run(command, "--version", folder=empty).stdout
    assert said == f"minitrain {minitrain.__version__}\n"


@pytest.mark.thorough
def test_doctor(bin_folder: Path, empty: Path) -> None:
    said = run(bin_folder / "minitrain", "doctor", folder=empty).stdout
    assert re.search(r"^collectives: \d+ of \d+ probes .*, 0 wrong$", said, re.M)


@pytest.mark.thorough
def test_explain(bin_folder: Path, empty: Path) -> None:
    said = run(bin_folder / "minitrain", "explain", folder=empty).stdout
    assert "every rank" in said


def test_check(bin_folder: Path, empty: Path) -> None:
    (empty / "my_model.py").write_text(MODEL)
    said = run(bin_folder / "minitrain", "check", "my_model.py:build", folder=empty)
    assert re.search(r"^proven: ", said.stdout, re.M)


def test_record_and_verify(bin_folder: Path, empty: Path) -> None:
    (empty / "loop.py").write_text(RECORDED)
    for name, rate in (("one", "0.1"), ("again", "0.1"), ("other", "0.2")):
        run(bin_folder / "python", "loop.py", f"runs/{name}", rate, folder=empty)
    command = (bin_folder / "minitrain", "verify", "runs/one")
    equal = run(*command, "runs/again", folder=empty).stdout
    assert equal.startswith("equal bits: 3 recorded steps and the end\n")
    parted = run(*command, "runs/other", folder=empty, expect=1).stdout
    assert parted.startswith("different at step 0: learning rate")


def test_what_needs_a_project_is_one_line(bin_folder: Path, empty: Path) -> None:
    done = run(bin_folder / "minitrain", "report", folder=empty, expect=2)
    assert done.stderr == "error: params.yaml: no such file\n"
