import fcntl
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from one_line import refusal
from project import run_python

from minitrain.harness import run_dir
from minitrain.harness.run_dir import PREFIX, private_folder, remove_abandoned

MAKES_ONE = """
import sys
from minitrain.harness.run_dir import private_folder
with private_folder() as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


def start() -> tuple[subprocess.Popen[str], Path]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", MAKES_ONE], **pipes)
    return process, Path(process.stdout.readline().strip())


def test_next_launch_removes_what_kill_9_left_and_nothing_that_lives() -> None:
    killed, left = start()
    killed.kill()
    killed.communicate()
    # the holder of its lock is alive, even if pids are reused
    holder = os.open(left, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    remove_abandoned()
    os.close(holder)
    assert left.is_dir()
    alive, living = start()
    try:
        with private_folder() as folder:
            assert not left.exists()
            assert living.is_dir()
            remove_abandoned()
            assert living.is_dir()
            assert folder.is_dir()
    finally:
        alive.communicate()
    assert not living.exists()


def test_what_is_of_others_stays(tmp_path: Path, monkeypatch) -> None:
    """Opening the pipe would wait forever for a writer."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    host = socket.gethostname()
    folders = ["somewhere", f"{PREFIX}2-abcdefgh", "minitrain-strategies-abcdefgh"]
    for name in (*folders, f"minitrain-meeting-another{host}-abcdefgh"):
        (tmp_path / name).mkdir()
    (tmp_path / f"{PREFIX}aaaaaaaa").symlink_to(tmp_path / "somewhere")
    os.mkfifo(tmp_path / f"{PREFIX}bbbbbbbb")
    remove_abandoned()
    with private_folder() as mine:
        assert mine.name.startswith(f"minitrain-meeting-{host}-")
        assert mine.stat().st_mode & 0o777 == 0o700
    # of another user
    (tmp_path / f"{PREFIX}cccccccc").mkdir()
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    remove_abandoned()
    assert len([*tmp_path.iterdir()]) == 7


def test_full_folder_for_temporary_files_is_one_line(monkeypatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=4096)
    monkeypatch.setattr(run_dir.shutil, "disk_usage", lambda path: usage)

    line = refusal(private_folder().__enter__)
    where = tempfile.gettempdir()
    assert line.startswith(f"{where}: no space left on the disk: 0.0 MB")
    assert "TMPDIR" in line


COMPILER = """
import os, tempfile
import torch
from minitrain.comm.groups import distributed, wrap_for_ddp
from minitrain.comm.torch_private import COMPILER_CACHE
with distributed():
    wrapped = wrap_for_ddp(torch.nn.Linear(2, 2))
torch.optim.AdamW(wrapped.parameters())
assert COMPILER_CACHE not in os.environ
print(os.listdir(tempfile.gettempdir()))
from torch._inductor.runtime.cache_dir_utils import cache_dir
print(os.path.basename(cache_dir()).startswith("torchinductor_"))
"""


def test_compiler_that_is_not_used_leaves_no_folder(tmp_path: Path) -> None:
    """If used, it has the cache that torch chooses."""
    done = run_python("-c", COMPILER, TMPDIR=str(tmp_path))
    assert done.stdout == "[]\nTrue\n", done.stderr
