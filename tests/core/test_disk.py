"""A full disk behind what libraries raise; stages on one: project/test_disk_full.py."""

import errno
import shutil
from pathlib import Path

import pytest
import torch

from minitrain.core.errors import (
    UserError,
    describe_os_error,
    disk_full,
    is_disk_full,
)
from minitrain.core.files import atomic_path, writing

FULL = Path("/dev/full")


@pytest.mark.parametrize("buffering", [0, -1])
def test_found_behind_what_torch_makes_of_it(tmp_path: Path, buffering: int) -> None:
    """Else the line would be "unexpected pos 64 vs 0"."""
    full = r"out\.pt: no space left on the disk"
    with (
        pytest.raises(UserError, match=full),
        writing(tmp_path / "out.pt"),
        open(FULL, "wb", buffering=buffering) as file,
    ):
        torch.save({"a": torch.zeros(10_000)}, file)


def test_found_where_torch_opens_the_file_itself(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no space left"), writing(tmp_path / "out.pt"):
        torch.save({"a": torch.zeros(10_000)}, FULL)


def test_found_behind_another_error() -> None:
    error = ValueError("cannot go on")
    error.__context__ = OSError(errno.ENOSPC, "full")
    assert is_disk_full(error)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_and_full_quota(number: int) -> None:
    assert is_disk_full(OSError(number, "full"))
    assert not is_disk_full(OSError(errno.EACCES, "not yours"))
    assert not is_disk_full(ValueError("full"))


def test_line_says_how_much_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=2_048_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    line = "no space left on the disk: it needs more than the 2.0 MB free there"
    assert disk_full(Path("data/not/yet/there")) == line
    error = OSError(errno.ENOSPC, "No space left on device", "data/a")
    assert describe_os_error(error) == f"data/a: {line}"


def test_inner_file_of_a_folder_is_named_as_it_will_be_called(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised, atomic_path(tmp_path / "a") as new:
        (new / "b" / "c").read_text()
    assert raised.value.filename == str(tmp_path / "a" / "b" / "c")
