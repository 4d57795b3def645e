"""Half-written notes of locks: removed, and never under a DVC that writes them."""

import fcntl
from pathlib import Path

import pytest
from dvc.rwlock import RWLOCK_FILE, RWLOCK_LOCK, RWLockFileCorruptedError, rwlock
from dvc_objects.fs import localfs
from project import run_python

from minitrain.core import dvc_lock
from minitrain.core.dvc_lock import remove_torn_notes

WHOLE = '{"write": {}, "read": {}}'


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """In the place of DVC's, with what guards them."""
    assert (dvc_lock.NOTES, dvc_lock.GUARD) == (RWLOCK_FILE, RWLOCK_LOCK)
    folder = tmp_path / ".dvc/tmp"
    folder.mkdir(parents=True)
    (folder / dvc_lock.GUARD).touch()
    return folder / dvc_lock.NOTES


def run_dvc_lock(folder: Path) -> None:
    with rwlock(str(folder), localfs, "dvc repro", [], ["a"], False):
        pass


@pytest.mark.parametrize("torn", ["", WHOLE[:5]])
def test_half_of_them_is_removed_and_dvc_goes_on(notes: Path, torn: str) -> None:
    notes.write_text(torn)
    with pytest.raises(RWLockFileCorruptedError):
        run_dvc_lock(notes.parent)
    done = run_python("-m", "minitrain.core.dvc_lock", folder=notes.parents[2])
    line = ".dvc/tmp/rwlock: a DVC that was killed left half of it; removed\n"
    assert (done.returncode, done.stderr) == (0, line)
    run_dvc_lock(notes.parent)
    assert notes.is_file()


def test_whole_ones_stay(notes: Path) -> None:
    notes.write_text(WHOLE)
    assert remove_torn_notes(notes.parents[2]) is None
    assert notes.read_text() == WHOLE


def test_those_that_a_dvc_is_writing_stay(notes: Path) -> None:
    notes.write_text("")
    with open(notes.with_name(dvc_lock.GUARD)) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert remove_torn_notes(notes.parents[2]) is None
    assert notes.is_file()


def test_a_project_without_dvc_is_left_alone(tmp_path: Path) -> None:
    assert remove_torn_notes(tmp_path) is None
