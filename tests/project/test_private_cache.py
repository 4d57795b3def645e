"""Another user of the machine runs no code through DVC's cache of the project."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from project import git, run_dvc

from minitrain.cli.private_cache import make_private_cache
from minitrain.core.errors import UserError

NOBODY = 65534


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
    assert run_dvc(folder, "init", "--quiet")[0] == 0
    return folder


def add_data(project: Path) -> None:
    (project / "data").write_text("data")
    code, output = run_dvc(project, "add", "data")
    assert code == 0, output


@pytest.mark.slow
def test_dvc_uses_ours_in_place_of_one_that_others_may_change(
    project: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # open to all, as DVC makes its default: what others put there runs as code
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(shared / "dvc"))
    add_data(project)
    assert [*(shared / "dvc/repo").iterdir()]
    monkeypatch.delenv("DVC_SITE_CACHE_DIR")
    shutil.rmtree(project / ".dvc/tmp")
    cache = make_private_cache(project)
    add_data(project)
    assert [*(cache / "repo").iterdir()]


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
    code, output = run_dvc(project, "exp", "run", "--temp", "--name", "copied")
    assert code == 0, output
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
    # nothing else to do
    monkeypatch.setattr(subprocess, "run", None)
    assert make_private_cache(project) == cache
    assert config.read_text() == written
    with pytest.raises(UserError, match="must be a project of DVC"):
        make_private_cache(project / ".dvc")
