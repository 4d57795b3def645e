"""Another user of the machine runs no code through DVC's cache of the project."""

import subprocess
from pathlib import Path

import pytest
from project import git, run_dvc

from minitrain.cli.private_cache import make_private_cache
from minitrain.core.errors import UserError


@pytest.mark.slow
def test_cache_that_dvc_uses_is_closed_and_other_settings_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")
    git(tmp_path, "init", "--quiet")
    assert run_dvc(tmp_path, "init", "--quiet")[0] == 0
    config = tmp_path / ".dvc/config.local"
    config.write_text("['remote \"class\"']\n    url = /mnt/x\n")
    cache = make_private_cache(tmp_path)
    assert "url = /mnt/x" in config.read_text()
    assert cache.stat().st_mode & 0o777 == 0o700
    (tmp_path / "data").write_text("data")
    code, output = run_dvc(tmp_path, "add", "data")
    assert code == 0, output
    assert [*(cache / "repo").iterdir()]
    # nothing else to do
    monkeypatch.setattr(subprocess, "run", None)
    assert make_private_cache(tmp_path) == cache
    with pytest.raises(UserError, match="must be a project of DVC"):
        make_private_cache(tmp_path / ".dvc")
