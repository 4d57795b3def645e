"""Tensors that a rank saves are those that its launcher maps."""

from pathlib import Path

import pytest
import torch

from minitrain.check.trial import SavedTensors, mapped
from minitrain.core.errors import UserError


def test_every_kind_of_tensor_is_mapped_as_it_was_saved(tmp_path: Path) -> None:
    wanted = {
        "0/gradients/a": torch.randn(3, 4),
        "0/gradients/b": torch.randn(4, 3).T,
        "0/gradients/c": torch.tensor(2.5, dtype=torch.bfloat16),
        "0/before/d": torch.tensor([True, False]),
        "0/before/e": torch.zeros(0, 2),
        "0/before/f": torch.randn(2, dtype=torch.complex64),
        "0/before/a view": torch.zeros(10_000)[:2],
        # large enough to be mapped
        "0/before/g": torch.randn(1 << 15),
    }
    saved = SavedTensors(tmp_path / "saved")
    for key, tensor in wanted.items():
        saved[key] = tensor
    taken = mapped(saved.files)
    assert Path(saved.files["0/before/a view"]).stat().st_size < 10_000
    for file in saved.files.values():
        Path(file).unlink()
    for key, tensor in wanted.items():
        assert taken[key].dtype == tensor.dtype
        assert torch.equal(taken[key], tensor)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_is_one_line(tmp_path: Path) -> None:
    saved = SavedTensors(tmp_path / "saved")
    (tmp_path / "saved/0.pt").symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"0\.pt: no space left on the disk"):
        saved["0/gradients/a"] = torch.zeros(1 << 15)


def test_without_a_folder_nothing_is_kept() -> None:
    forgotten = SavedTensors(None)
    forgotten["0/after/a"] = torch.ones(2)
    assert not forgotten
    assert not forgotten.files
