"""Writers killed at any system call, and a full disk. Stages on a full disk:
project/test_disk_full.py.
"""

import errno
import os
import socket
from pathlib import Path

import pytest
import torch
from project import run_python

from minitrain.core.errors import NO_SPACE, UserError, describe_os_error, is_disk_full
from minitrain.core.files import atomic_path, open_atomic, writing

# A process without torch that forks one child for every system call to die at. Prints
# the number of calls, and each call after which the state was wrong.
DIE_EVERYWHERE = """
import builtins, os, shutil, sys
from pathlib import Path
from minitrain.core.files import atomic_path, open_atomic

kind, place = sys.argv[1], Path(sys.argv[2])
target = place / "out"
NAMES = "open write fsync replace rename unlink remove rmdir mkdir listdir scandir"
left = None


def maybe_die():
    global left
    if left is not None:
        left -= 1
        if left == 0:
            os._exit(9)


def dying(function):
    def call(*arguments, **options):
        maybe_die()
        done = function(*arguments, **options)
        maybe_die()
        return done
    return call


for name in NAMES.split():
    setattr(os, name, dying(getattr(os, name)))
builtins.open = dying(open)


def write(what):
    if kind == "file":
        with open_atomic(target) as file:
            for half in (what[:2], what[2:]):
                os.write(file.fileno(), half.encode())
    else:
        with atomic_path(target) as folder:
            os.mkdir(folder)
            for half in ("a", "b"):
                with open(folder / half, "w") as file:
                    os.write(file.fileno(), what.encode())


def found():
    if target.is_dir():
        return [(p.name, p.read_text()) for p in sorted(target.iterdir())]
    return target.read_text() if target.exists() else None


def expected(what):
    return what if kind == "file" else [("a", what), ("b", what)]


def attempt(what, moment):
    global left
    child = os.fork()
    if child == 0:
        left = moment
        write(what)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


moment, code, hurt = 0, 9, []
while code == 9:
    moment += 1
    shutil.rmtree(place)
    place.mkdir()
    write("old!")
    code = attempt("new!", moment)
    # a folder that is replaced is missing for a moment
    allowed = [expected("old!"), expected("new!"), *[None] * (kind == "folder")]
    whole = found() in allowed
    write("next")
    names = [path.name for path in place.iterdir()]
    if not whole or found() != expected("next") or names != ["out"]:
        hurt.append((moment, whole, found(), names))
    if code == 0 and found() != expected("next"):
        hurt.append("never done")
print(moment - 1, hurt)
"""


@pytest.mark.parametrize(("kind", "moments"), [("file", 10), ("folder", 30)])
def test_old_or_new_after_a_kill_at_any_call(
    tmp_path: Path, kind: str, moments: int
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    done = run_python("-c", DIE_EVERYWHERE, kind, place)
    count, _, hurt = done.stdout.partition(" ")
    assert hurt.strip() == "[]", done.stdout + done.stderr
    assert int(count) >= moments


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
