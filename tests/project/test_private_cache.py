"""Another user of the machine runs no code through DVC's cache of the project."""

import os
import pickle
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from project import git, run_dvc

from minitrain.cli.private_cache import make_private_cache
from minitrain.core.errors import UserError

NOBODY = 65534


class Touch:
    """What pickle makes of it is a file: code that ran."""

    def __init__(self, mark: Path) -> None:
        self.mark = str(mark)

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.mark, "w")


def attack(cache: Path, mark: Path) -> None:
    """Replace the project's folder in ``cache`` by a copy in which a key is a pickle
    that runs code.
    """
    (there,) = (cache / "repo").iterdir()
    ours = there.with_name("of-the-attacker")
    shutil.copytree(there, ours)
    with closing(sqlite3.connect(ours / "links/cache.db")) as database, database:
        # a key that is not raw is a pickle
        columns = "key, raw, store_time, access_time, size, mode, value"
        database.execute(
            f"INSERT INTO Cache({columns}) VALUES (?, 0, 0, 0, 0, 1, '')",
            [pickle.dumps(Touch(mark))],
        )
    for path in (ours, *ours.rglob("*")):
        path.chmod(0o777)
    there.rename(there.with_name("before"))
    ours.rename(there)


@contextmanager
def second_user() -> Iterator[None]:
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


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


def attacked(project: Path, cache: Path) -> bool:
    """Whether another user's attack on ``cache`` runs code in the next checkout."""
    (project / "data").write_text("data")
    code, output = run_dvc(project, "add", "data")
    assert code == 0, output
    mark = project.parent / "ran"
    with suppress(PermissionError), second_user():
        attack(cache, mark)
    (project / "data").unlink()
    code, output = run_dvc(project, "checkout")
    # DVC fails after the code ran
    assert mark.exists() or code == 0, output
    return mark.exists()


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be a second user")
def test_a_second_user_runs_code_by_the_default_and_not_by_ours(
    project: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a folder made as DVC makes its default, with no code of others in it
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(shared / "dvc"))
    assert attacked(project, shared / "dvc")
    (shared / "ran").unlink()

    monkeypatch.delenv("DVC_SITE_CACHE_DIR")
    shutil.rmtree(project / ".dvc/tmp")
    cache = make_private_cache(project)
    assert not attacked(project, cache)
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
    # opened by hand since, and nothing else to do
    cache.chmod(0o777)
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
