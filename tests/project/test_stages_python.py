"""stages/python: choice of the interpreter, and imports from neighboring files."""

import os
import shutil
from pathlib import Path

import pytest
from project import ROOT, run_in, write_script


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for folder in ("stages", "studies/mine"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / "stages/python", tmp_path / "stages")
    return tmp_path


def test_neighbors_are_found(project: Path) -> None:
    """PYTHONSAFEPATH alone would exclude both folders."""
    study = project / "studies/mine"
    (project / "stages/__init__.py").touch()
    (project / "stages/hello.py").write_text("print('hello')\n")
    (study / "measure.py").write_text("import settings\n")
    (study / "settings.py").write_text("print('settings')\n")
    for folder, command, said in (
        (project, ("stages/python", "-m", "stages.hello"), "hello\n"),
        (study, ("../../stages/python", "measure.py"), "settings\n"),
    ):
        done = run_in(folder, *command, PYTHONSAFEPATH="1")
        assert done.stdout == said, done.stderr


def make_venv(folder: Path) -> Path:
    """Create a virtual environment whose Python prints the name of ``folder``."""
    write_script(folder / ".venv/bin/python", f"echo {folder.name}")
    return folder / ".venv"


def test_virtual_environment_is_that_of_the_project_or_its_original(
    project: Path,
) -> None:
    """Also in a copy that DVC makes for an experiment of the project or of a study, and
    in no other folder above: on a shared machine it may be another user's.
    """
    mine = project / "projects/studies/mine"
    copies = ("", ".dvc/tmp/exps/tmp1", "studies/.dvc/tmp/exps/tmp1")
    for copy in copies:
        (mine / copy / "stages").mkdir(parents=True)
        shutil.copy(ROOT / "stages/python", mine / copy / "stages")
    for folder in (project, project / "projects", mine / "studies"):
        make_venv(folder)
    write_script(project / "usual/python3", "echo usual")
    path = f"{project / 'usual'}{os.pathsep}{os.environ['PATH']}"
    for wanted in ("usual", "mine"):
        for copy in copies:
            done = run_in(mine / copy, "stages/python", PATH=path)
            assert done.stdout == f"{wanted}\n", (copy, done.stderr)
        if wanted == "usual":
            make_venv(mine)


NOBODY = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of others")
def test_virtual_environment_of_another_user_is_refused(project: Path) -> None:
    venv = make_venv(project)
    for part in (".", "bin", "bin/python"):
        os.chown(venv / part, NOBODY, NOBODY)
        done = run_in(project, "stages/python")
        os.chown(venv / part, 0, 0)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"error: {venv}: belongs to another user; ")
        assert done.stderr.count("\n") == 1
    # owned by root, as in an image, or by the project's owner, as in a mounted folder
    for owner in (0, NOBODY):
        for path in (project / "stages/python", venv, *venv.rglob("*")):
            os.chown(path, owner, owner)
        assert run_in(project, "stages/python").stdout == f"{project.name}\n"


def test_modules_and_environment_are_those_of_the_project(project: Path) -> None:
    """A sibling folder with that name may belong to another user."""
    for folder in (project / "common", project / "studies/common"):
        folder.mkdir()
        (folder / "shared.py").write_text(f"print({str(folder)!r})\n")
    asked = ("-c", "import shared")
    done = run_in(project / "studies/mine", "../../stages/python", *asked)
    assert done.stdout == f"{project / 'studies/common'}\n", done.stderr
    done = run_in(project / "stages", "./python", *asked)
    assert (done.returncode, done.stdout) == (1, ""), done.stdout
