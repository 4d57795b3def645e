"""What a killed DVC leaves half-written: put right, and never under one that lives."""

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from dvc.dvcfile import Lockfile
from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc.rwlock import RWLOCK_FILE, RWLOCK_LOCK, RWLockFileCorruptedError, rwlock
from dvc_objects.fs import localfs
from project import environment, run_python

from minitrain.cli import after_kill
from minitrain.cli.after_kill import (
    HALF,
    mend,
    remove_torn_notes,
    restore_stages,
)

WHOLE = '{"write": {}, "read": {}}'
TWO_STAGES = """stages:
  a:
    cmd: echo 1 > x
    outs: [x]
  b:
    cmd: cat x > y
    deps: [x]
    outs: [y]
"""


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """In the place of DVC's, with what guards them."""
    assert (after_kill.NOTES, after_kill.GUARD) == (RWLOCK_FILE, RWLOCK_LOCK)
    folder = tmp_path / ".dvc/tmp"
    folder.mkdir(parents=True)
    (folder / after_kill.GUARD).touch()
    return folder / after_kill.NOTES


def notes_of_dvc(folder: Path) -> None:
    with rwlock(str(folder), localfs, "dvc repro", [], ["a"], False):
        pass


@pytest.mark.parametrize("torn", ["", WHOLE[:5]])
def test_half_of_them_is_removed_and_dvc_goes_on(notes: Path, torn: str) -> None:
    notes.write_text(torn)
    with pytest.raises(RWLockFileCorruptedError):
        notes_of_dvc(notes.parent)
    done = run_python("-m", "minitrain.cli.after_kill", folder=notes.parents[2])
    line = f".dvc/tmp/rwlock: {HALF}; removed\n"
    assert (done.returncode, done.stderr) == (0, line)
    notes_of_dvc(notes.parent)
    assert notes.is_file()


def test_whole_ones_stay(notes: Path) -> None:
    notes.write_text(WHOLE)
    assert remove_torn_notes(notes.parents[2]) is None
    assert notes.read_text() == WHOLE


def test_those_that_a_dvc_is_writing_stay(notes: Path) -> None:
    notes.write_text("")
    with open(notes.with_name(after_kill.GUARD)) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert remove_torn_notes(notes.parents[2]) is None
    assert notes.is_file()


def test_a_project_without_dvc_is_left_alone(tmp_path: Path) -> None:
    assert remove_torn_notes(tmp_path) is None


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of two stages that were made."""
    folder = tmp_path_factory.mktemp("made")
    Repo.init(str(folder), no_scm=True).close()
    (folder / "dvc.yaml").write_text(TWO_STAGES)
    assert "Running stage 'b'" in repro(folder)
    return folder


@pytest.fixture
def lock(made: Path) -> Iterator[Path]:
    """As DVC wrote it, before each test."""
    path = made / "dvc.lock"
    text = path.read_text()
    yield path
    path.write_text(text)


@pytest.fixture
def whole(lock: Path) -> str:
    return lock.read_text()


def repro(folder: Path) -> str:
    """What `dvc repro` says; it ends well."""
    done = subprocess.run(
        [sys.executable, "-m", "dvc", "repro"],
        cwd=folder,
        env=environment(DVC_NO_ANALYTICS="1"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def dvc_reads(lock: Path) -> bool:
    with Repo(str(lock.parent)) as repo:
        return read_by(repo, lock)


def read_by(repo: Repo, lock: Path) -> bool:
    try:
        Lockfile(repo, str(lock)).load()
    except DvcException:
        return False
    return True


@pytest.fixture
def committed(lock: Path, whole: str) -> Iterator[str]:
    """What git has of it: the second stage, and a first one of another day."""
    older = whole.replace("echo 1 > x", "echo 0 > x")
    lock.write_text(older)
    for command in (
        ["init", "--quiet"],
        ["add", "dvc.lock"],
        ["-c", "user.name=a", "-c", "user.email=a", "commit", "-qm", "lock"],
    ):
        subprocess.run(["git", *command], cwd=lock.parent, check=True)
    yield older
    shutil.rmtree(lock.parent / ".git")
    lock.write_text(whole)


def test_every_beginning_is_read_by_dvc_afterwards(
    lock: Path, whole: str, committed: str
) -> None:
    second = committed[committed.index("  b:\n") :]
    mended = set()
    with Repo(str(lock.parent)) as repo:
        for length in range(len(whole)):
            text = whole[:length]
            lock.write_text(text)
            refused = not read_by(repo, lock)
            # of what DVC takes, too, a line without end tells that more was to come
            assert restore_stages(lock) == (refused or not text.endswith("\n"))
            assert read_by(repo, lock)
            mended.add(lock.read_text())
    assert {committed, whole[: whole.index("  b:\n")] + second} <= mended


def test_one_that_is_whole_stays(lock: Path, whole: str, committed: str) -> None:
    lock.write_text(whole)
    assert not restore_stages(lock)
    assert lock.read_text() == whole


@pytest.mark.parametrize(
    ("end", "left"), [(0, None), (20, None), (100, None), ("outs:\n", "outs:\n")]
)
def test_without_a_whole_stage_or_a_commit_it_is_removed(
    lock: Path, whole: str, end: int | str, left: str | None
) -> None:
    """Unless it ends with a line: then it may be what a newer DVC wrote."""
    length = end if isinstance(end, int) else whole.index(end) + len(end)
    lock.write_text(whole[:length])
    assert restore_stages(lock) == (left is None)
    assert lock.exists() == (left is not None)


def test_not_while_a_dvc_is_at_work(lock: Path, whole: str) -> None:
    lock.write_text("")
    with Repo(str(lock.parent)) as repo, repo.lock:
        assert mend(lock.parent) == []
    assert lock.read_text() == ""
    assert len(mend(lock.parent)) == 1


def test_command_says_it_and_dvc_goes_on(lock: Path, whole: str) -> None:
    lock.write_text(whole[:-100])
    assert not dvc_reads(lock)
    done = run_python("-m", "minitrain.cli.after_kill", folder=lock.parent)
    line = f"dvc.lock: {HALF}; it has its whole stages, and the others as committed\n"
    assert (done.returncode, done.stderr) == (0, line)
    # what the lost stage made comes back from DVC's cache of runs
    assert "Stage 'b' is cached" in repro(lock.parent)
    assert lock.read_text() == whole


@pytest.mark.parametrize("length", [0, 20, 100])
def test_stages_that_are_lost_are_those_of_the_last_commit(
    lock: Path, whole: str, committed: str, length: int
) -> None:
    lock.write_text(whole[:length])
    assert restore_stages(lock)
    assert lock.read_text() == committed


def test_a_whole_stage_is_newer_than_the_last_commit(
    lock: Path, whole: str, committed: str
) -> None:
    lock.write_text(whole[:-100])
    assert restore_stages(lock)
    assert lock.read_text() == whole


@pytest.mark.parametrize(
    "spoiled",
    [
        "<<<<<<< HEAD\n{}=======\n{}>>>>>>> other\n",
        "{}<<<<<<< HEAD\n      size: 2\n=======\n      size: 3\n>>>>>>> other\n",
        "schema: '2.0'\nstages:\n  a:\n<<<<<<< HEAD\n    cmd: 1\n=======\n",
        "words\n",
        "stages:\n  a:\n    cmd: 1\n",
        "{}datasets:\n- name: d\n  type: url\n  url: s3://x\n  fi",
    ],
)
def test_what_no_kill_leaves_is_left_alone(
    lock: Path, whole: str, committed: str, spoiled: str
) -> None:
    text = spoiled.format(whole, whole)
    lock.write_text(text)
    assert not dvc_reads(lock)
    assert not restore_stages(lock)
    assert lock.read_text() == text
