"""Writers killed at any line, and a full disk. Stages on a full disk:
project/test_disk_full.py.
"""

import errno
import os
import shutil
import socket
import sys
from pathlib import Path

import pytest
import torch
from killed import killed_at
from project import run_python

from minitrain.core import files
from minitrain.core.errors import NO_SPACE, UserError, describe_os_error, is_disk_full
from minitrain.core.files import atomic_path, open_atomic, writing

WRITERS = (files, shutil, sys.modules[__name__])


def write(target: Path, kind: str, what: str) -> None:
    """Write ``what`` to a file in two halves, or to each of two files in a folder."""
    if kind == "file":
        with open_atomic(target) as file:
            for half in (what[:2], what[2:]):
                file.write(half)
                file.flush()
    else:
        with atomic_path(target) as folder:
            folder.mkdir()
            for name in "ab":
                with open(folder / name, "w") as file:
                    file.write(what)


def found(target: Path) -> str | list[str] | None:
    if target.is_dir():
        return [path.read_text() for path in target.iterdir()]
    return target.read_text() if target.exists() else None


@pytest.mark.parametrize(("kind", "moments"), [("file", 10), ("folder", 30)])
def test_old_or_new_after_a_kill_at_any_line(
    tmp_path: Path, kind: str, moments: int
) -> None:
    target, killed, moment = tmp_path / "out", True, 0
    old, new, later = (
        what if kind == "file" else [what] * 2 for what in ("old!", "new!", "next")
    )
    # a folder that is replaced is missing for a moment
    allowed = [old, new, *[None] * (kind == "folder")]
    seen = []
    while killed:
        moment += 1
        write(target, kind, "old!")
        killed = killed_at(moment, lambda: write(target, kind, "new!"), *WRITERS)
        seen.append(found(target))
        assert seen[-1] in allowed, moment
        write(target, kind, "next")
        assert found(target) == later, moment
        assert [*tmp_path.iterdir()] == [target], moment
    assert (seen[0], seen[-1]) == (old, new)
    assert moment > moments


def test_only_what_dead_processes_of_this_host_left_is_removed(tmp_path: Path) -> None:
    host = socket.gethostname()
    dead = run_python("-c", "import os; print(os.getpid())").stdout.strip()
    stale = [f".out.{host}.{dead}.tmp", f".out.{host}.{os.getpid()}.tmp"]
    kept = [
        f".out.{host}.{os.getppid()}.tmp",
        f".out.elsewhere{host}.{dead}.tmp",
        f".other.{host}.{dead}.tmp",
        f".out.{host}.x.tmp",
    ]
    for name in [*stale, *kept]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "inside").touch()
    with open_atomic(tmp_path / "out") as file:
        file.write("new")
    assert {path.name for path in tmp_path.iterdir()} == {"out", *kept}


def test_link_to_a_folder_is_replaced_and_not_what_it_leads_to(tmp_path: Path) -> None:
    """DVC may replace outputs by links into its cache."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/kept").touch()
    (tmp_path / "out").symlink_to("cache")
    with atomic_path(tmp_path / "out") as folder:
        folder.mkdir()
    assert not (tmp_path / "out").is_symlink()
    assert (tmp_path / "cache/kept").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"cache", "out"}


def test_all_is_synced_before_it_gets_its_name_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    sync, replace = os.fsync, os.replace

    def noted(descriptor: int) -> None:
        calls.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        sync(descriptor)

    def placed(one: Path, other: Path) -> None:
        calls.append("replaced")
        replace(one, other)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "replace", placed)
    with atomic_path(tmp_path / "out") as folder:
        folder.mkdir()
        (folder / "inside").write_text("new")
    inside, temporary, *after = calls
    assert (inside, after) == ("inside", ["replaced", tmp_path.name])
    assert temporary.startswith(".out.")


def test_full_disk_is_found_behind_other_errors() -> None:
    line = f"data/not/yet/out.pt: {NO_SPACE}"
    with pytest.raises(UserError, match=line), writing(Path("data/not/yet/out.pt")):
        # torch opens the file, and says "unexpected pos 64 vs 0"
        torch.save({"a": torch.zeros(10_000)}, "/dev/full")
    for number in (errno.ENOSPC, errno.EDQUOT):
        error = ValueError("cannot go on")
        error.__context__ = OSError(number, "full")
        assert is_disk_full(error)
    assert not is_disk_full(OSError(errno.EACCES, "not yours"))
    assert not is_disk_full(ValueError("full"))
    full = OSError(errno.ENOSPC, "No space left on device", "data/a")
    assert describe_os_error(full) == f"data/a: {NO_SPACE}"
