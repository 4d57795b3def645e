"""Another user of the machine runs no code through DVC's cache of the project."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from project import environment

from minitrain.cli.checks.machine import check_dvc_cache
from minitrain.cli.private_cache import KEY, is_private, make_private_cache
from minitrain.core.errors import UserError


def dvc(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dvc", *arguments]
    return subprocess.run(
        command, cwd=project, capture_output=True, text=True, env=environment()
    )


def git(project: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments]
    return subprocess.run(
        command, cwd=project, capture_output=True, text=True, check=True
    ).stdout


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that all users may enter, as /var/tmp: tmp_path is closed to them."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.fixture
def project(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new project of DVC."""
    folder = shared / "project"
    folder.mkdir()
    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")
    git(folder, "init", "--quiet")
    assert dvc(folder, "init", "--quiet").returncode == 0
    return folder


@pytest.mark.slow
def test_dvc_keeps_its_index_in_our_folder(project: Path, shared: Path) -> None:
    """It unpickles what it finds there: in a folder that is open to others, theirs."""
    cache = make_private_cache(project)
    (project / "data").write_text("data")
    added = dvc(project, "add", "data")
    assert added.returncode == 0, added.stderr
    assert [*(cache / "repo").iterdir()]
    assert check_dvc_cache(project).verdict == "fine"
    assert dvc(project, "config", "--local", KEY, str(shared)).returncode == 0
    assert check_dvc_cache(project).verdict == "trouble"


@pytest.mark.slow
@pytest.mark.thorough
def test_the_setting_reaches_the_copies_of_experiments(project: Path) -> None:
    cache = make_private_cache(project)
    (project / "dvc.yaml").write_text(
        "stages:\n  show:\n    cmd: dvc config core.site_cache_dir > shown\n"
        "    outs: [{shown: {cache: false}}]\n"
    )
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "-m", "a")
    done = dvc(project, "exp", "run", "--temp", "--name", "copied")
    assert done.returncode == 0, done.stderr
    names = git(project, "for-each-ref", "--format=%(refname)", "refs/exps").split()
    (name,) = [name for name in names if name.endswith("copied")]
    assert git(project, "show", f"{name}:shown").strip() == str(cache)


def test_it_is_closed_and_other_settings_stay(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = project / ".dvc" / "config.local"
    config.write_text("['remote \"class\"']\n    url = /mnt/x\n")
    cache = make_private_cache(project)
    written = config.read_text()
    assert "url = /mnt/x" in written
    assert cache.stat().st_mode & 0o777 == 0o700
    # opened by hand since, and nothing else to do
    cache.chmod(0o777)
    assert not is_private(cache)
    monkeypatch.setattr(subprocess, "run", None)
    assert make_private_cache(project) == cache
    assert cache.stat().st_mode & 0o777 == 0o700
    assert config.read_text() == written
    with pytest.raises(UserError, match="must be a project of DVC"):
        make_private_cache(project / ".dvc")
    # one that another put there first
    cache.rmdir()
    cache.symlink_to(project)
    with pytest.raises(UserError, match="must be a folder of yours"):
        make_private_cache(project)


def test_a_folder_is_private_by_one_above_it(shared: Path) -> None:
    inside = shared / "closed" / "in" / "side"
    inside.mkdir(parents=True)
    inside.chmod(0o777)
    assert not is_private(inside)
    (shared / "closed").chmod(0o700)
    assert is_private(inside)
    assert is_private(inside / "not there yet")
