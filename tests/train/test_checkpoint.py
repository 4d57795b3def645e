"""Checkpoints are whole or not there, and of this run or refused."""

import errno
import fcntl
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from killed import killed_at

from minitrain.core import files
from minitrain.core.errors import UserError
from minitrain.ddp import distributed
from minitrain.harness.launcher import launch
from minitrain.train import checkpoint, resume
from minitrain.train.checkpoint import (
    MANIFEST,
    Checkpoints,
    Kept,
    load_rank,
    step_of,
    steps_in,
)

pytestmark = pytest.mark.slow

WRITERS = (checkpoint, shutil, files)
KEPT = {"model": {"w": torch.arange(2000.0)}, "random": None, "seen": "[1]"}


def checkpoints_in(folder: Path, **changes: Any) -> Checkpoints:
    """Of some run, after every third step."""
    made = Checkpoints(folder, {"run": "gloo-1", "train.seed": 1}, every=3, keep=2)
    return replace(made, **changes)


def save(checkpoints: Checkpoints, *steps: int) -> Checkpoints:
    for step in steps:
        checkpoints.save(step, {**KEPT, "step": step})
    return checkpoints


def newest(checkpoints: Checkpoints) -> int | None:
    """After how many steps the one was written that a run would go on from."""
    found = checkpoints.newest()
    return None if found is None else step_of(found)


def test_the_newest_are_kept_and_come_back_as_they_were(tmp_path: Path) -> None:
    saved = save(checkpoints_in(tmp_path / "run"), 3, 6, 9)
    assert steps_in(saved.folder) == [9, 6]
    assert newest(saved) == 9
    found = load_rank(tmp_path / "run/step-9")
    assert torch.equal(found["model"]["w"], KEPT["model"]["w"])
    del found["model"]
    assert found == {"random": None, "seen": "[1]", "step": 9}
    assert newest(checkpoints_in(tmp_path / "none")) is None


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    # of a manifest, in its own sum
    content[-10] ^= 4
    file.write_bytes(content)


def no_object(file: Path) -> None:
    file.write_text("[1]")


@pytest.mark.parametrize("damage", [cut, flip_a_bit, no_object, Path.unlink])
@pytest.mark.parametrize("name", ["rank-0.pt", MANIFEST])
def test_the_one_before_a_damaged_one_is_used_and_a_line_says_so(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], None],
    name: str,
) -> None:
    saved = save(checkpoints_in(tmp_path), 3, 6)
    damage(tmp_path / "step-6" / name)
    assert newest(saved) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "step-6: incomplete or damaged" in line
    # it goes when the run writes a new one, and never in the place of that
    assert newest(save(replace(saved, keep=1), 4)) == 4
    assert steps_in(tmp_path) == [4]


def test_one_under_another_name_or_of_another_run_is_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = save(checkpoints_in(tmp_path), 3, 6)
    os.rename(tmp_path / "step-6", tmp_path / "step-9")
    assert newest(saved) == 3
    other = replace(saved, identity={"run": "gloo-1", "train.seed": 2})
    assert newest(other) is None
    assert "step-3: another run's" in capsys.readouterr().err


def test_a_save_that_is_killed_anywhere_leaves_a_whole_one(tmp_path: Path) -> None:
    old, new = 3, 6
    before = save(checkpoints_in(tmp_path / "before", keep=1), old).folder
    points, found = 0, set()
    while True:
        points += 1
        folder = tmp_path / str(points)
        shutil.copytree(before, folder)
        again = checkpoints_in(folder, keep=1)
        killed = killed_at(points, lambda again=again: save(again, new), *WRITERS)
        left = newest(again)
        assert left in (old, new)
        assert load_rank(folder / f"step-{left}")["step"] == left
        assert newest(save(again, new)) == new
        assert [path.name for path in folder.iterdir()] == [f"step-{new}"]
        found.add(left)
        if not killed:
            break
    assert points > 50
    assert found == {old, new}


def test_what_is_complete_stays_though_another_rank_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older ones have been removed by then."""
    saved = save(checkpoints_in(tmp_path, keep=1), 3)
    complete = Checkpoints._complete

    def complete_and_lose(*given: Any) -> None:
        complete(*given)
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(Checkpoints, "_complete", complete_and_lose)
    with pytest.raises(RuntimeError, match="closed by peer"):
        save(saved, 6)
    assert newest(saved) == 6


def test_a_manifest_is_written_when_all_else_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut: only what was flushed is there afterwards."""
    flushed: list[str] = []
    fsync = os.fsync

    def note_fsync(descriptor: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        # the temporary name of a file that is renamed when it is flushed
        flushed.extend(n for n in ("rank-0.pt", MANIFEST) if name.startswith(f".{n}."))
        flushed.extend([name] if not name.endswith(".tmp") else [])
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note_fsync)
    saved = checkpoints_in(tmp_path / ".minitrain" / "all" / "run")
    saved.begin()
    save(saved, 3)
    above = ["all", ".minitrain", tmp_path.name]
    written = ["rank-0.pt", "step-3", MANIFEST, "step-3"]
    assert flushed == [*above, "run", *written]


def save_where_one_disk_fails(folder: Path, number: int) -> str:
    def fail(path: Path) -> None:
        raise OSError(number, os.strerror(number), str(path))

    with distributed() as (rank, _):
        saved = save(checkpoints_in(folder), 3)
        if rank == 1:
            files.fsync = fail
        try:
            save(saved, 6)
        except (UserError, OSError) as error:
            return f"{error}; {newest(saved)}"
    return "nothing was raised"


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.ENOSPC, "step-6/rank-1.pt: no space left on the disk"),
        (errno.EIO, "[Errno 5] Input/output error: "),
    ],
)
def test_a_rank_that_cannot_write_ends_all_and_keeps_what_was_there(
    tmp_path: Path, number: int, told: str
) -> None:
    for line in launch(save_where_one_disk_fails, 2, tmp_path, number, timeout_s=60):
        assert told in line
        assert "step-6/rank-1.pt" in line
        assert line.endswith("; 3")
    assert [path.name for path in tmp_path.iterdir()] == ["step-3"]
    assert len(json.loads((tmp_path / "step-3" / MANIFEST).read_text())["files"]) == 2


def test_a_run_forgets_its_own_checkpoints_only(tmp_path: Path) -> None:
    one, other = (checkpoints_in(tmp_path / ".m/all" / name) for name in "ab")
    save(one, 3)
    save(other, 3)
    one.forget()
    assert newest(other) == 3
    assert not one.folder.exists()
    other.forget()
    assert [*tmp_path.iterdir()] == []


def test_two_processes_never_write_to_one_folder(tmp_path: Path, monkeypatch) -> None:
    # a lock belongs to what was opened: this is as good as that of another process
    folder = tmp_path / "run"
    folder.mkdir()
    other = os.open(folder, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    monkeypatch.setattr(checkpoint, "WAIT_S", 0.3)
    with pytest.raises(UserError, match="another process trains this very run"):
        checkpoints_in(folder).begin()
    monkeypatch.setattr(checkpoint, "WAIT_S", 30)

    def end() -> None:
        # as a run does that is complete
        checkpoints_in(folder).forget()
        os.close(other)

    threading.Timer(0.5, end).start()
    assert checkpoints_in(folder).begin()
    # which may begin twice
    assert checkpoints_in(folder).begin()
    third = os.open(folder, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(third, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(third)


def test_a_folder_that_a_rank_does_not_see_gets_no_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on two hosts that share no disk."""
    monkeypatch.setattr(checkpoint, "who_sees", lambda _: [True, False])
    assert not checkpoints_in(tmp_path / "a" / "b").begin()
    assert [*(tmp_path / "a" / "b").iterdir()] == []


class Listed:
    """Worker that lists its steps in the place of training."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def train(self, steps: Iterable[int]) -> None:
        self.rows.extend(steps)

    def kept(self) -> Kept:
        return {**KEPT, "seen": json.dumps({"rows": self.rows})}

    def restore(self, kept: Kept) -> None:
        self.rows = json.loads(kept["seen"])["rows"]

    def run_through(self, steps: int, saved: Checkpoints) -> int:
        worker: Any = self
        return resume.run_through(worker, steps, saved)


@pytest.mark.parametrize(("steps", "left"), [(3, []), (6, [3]), (8, [6, 3])])
def test_it_saves_after_every_third_step_but_the_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], steps: int, left: list[int]
) -> None:
    saved, again = checkpoints_in(tmp_path / "run"), Listed()
    assert Listed().run_through(steps, saved) == 0
    assert steps_in(saved.folder) == left
    # elsewhere: this process holds the folder until it ends
    copy = shutil.copytree(saved.folder, tmp_path / "copy")
    saved = replace(saved, folder=copy)
    assert again.run_through(steps, saved) == (left[0] if left else 0)
    assert again.rows == [*range(steps)]
    went_on = [f"going on from step {step} of {steps}" for step in left[:1]]
    assert capsys.readouterr().err.splitlines() == went_on


class Code:
    """Runs code where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


@pytest.mark.parametrize(
    "part", [{"model": Code()}, {"seen": "["}, {"seen": json.dumps({"rows": [1, 0]})}]
)
def test_one_that_does_not_fit_is_not_used_and_the_run_starts_again(
    part: Kept,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    listed, saved = Listed(), checkpoints_in(tmp_path / "run")
    listed.rows = [*range(9)]
    saved.save(9, listed.kept())
    # without the part it fits
    assert Listed().run_through(10, saved) == 9
    saved.save(9, {**listed.kept(), **part})
    capsys.readouterr()
    again = Listed()
    assert again.run_through(10, saved) == 0
    assert again.rows == [*range(10)]
    line = f"checkpoint not used: {tmp_path / 'run/step-9'}: {resume.NOT_USED}"
    assert capsys.readouterr().err.splitlines() == [line]
    # what it saved again is older, and in the place of that
    assert steps_in(saved.folder) == [9, 6]
    assert not Path("ran").exists()
