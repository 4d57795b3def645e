"""DVC's cache of the project lies where no other user can put code: DVC unpickles what
it finds there.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from project import environment

from minitrain.cli.checks.machine import check_dvc_cache
from minitrain.cli.private_cache import ENVIRONMENT, is_private, make_private_cache
from minitrain.core.errors import UserError


def dvc(project: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "dvc", *arguments]
    subprocess.run(command, cwd=project, env=environment(), check=True)


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A new project of DVC in a folder that all users may enter, as /var/tmp: tmp_path
    is closed to them.
    """
    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o755)
        folder = Path(name, "project")
        folder.mkdir()
        subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
        dvc(folder, "init", "--quiet")
        yield folder


def test_dvc_uses_the_closed_folder(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as DVC makes its default
    shared = project / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with monkeypatch.context() as patch:
        patch.setenv(ENVIRONMENT, str(shared))
        assert check_dvc_cache(project).verdict == "trouble"
    cache = make_private_cache(project)
    assert check_dvc_cache(project).verdict == "fine"
    (project / "data").write_text("data")
    dvc(project, "add", "data")
    assert [*(cache / "repo").iterdir()]


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
