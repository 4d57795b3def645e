"""Files larger than memory: what was compared is handed back, and nothing is lost."""

import shutil
from pathlib import Path

import pytest
import torch
from project import run_python

from minitrain.compare.states import hand_back

pytestmark = pytest.mark.slow

MEGABYTE = 1 << 20
PEAK = """
import sys
from minitrain.cli.main import run
assert run(["verify", *sys.argv[1:]]) == 0
lines = open("/proc/self/status").read().splitlines()
print(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
"""


def test_values_stay(tmp_path: Path) -> None:
    whole = torch.arange(2.0**16)
    torch.save({"w": whole}, tmp_path / "a.pt")
    mapped = torch.load(tmp_path / "a.pt", mmap=True, weights_only=True)["w"]
    for tensor in (mapped, whole.clone(), torch.ones(1), torch.ones(0)):
        before = tensor.clone()
        hand_back(tensor)
        assert torch.equal(tensor, before)


def peak_mb(path: Path) -> int:
    # pages that are mapped twice are not handed back
    other = Path(shutil.copy(path, path.with_suffix(".copy.pt")))
    done = run_python("-c", PEAK, path, other)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.splitlines()[-1]) // 1024


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    for name, count in (("small", 1), ("large", 32)):
        tensors = {str(n): torch.full((MEGABYTE,), float(n)) for n in range(count)}
        torch.save(tensors, tmp_path / f"{name}.pt")
    # 4 MB each, so 124 more on each side
    small, large = (peak_mb(tmp_path / f"{n}.pt") for n in ("small", "large"))
    assert large - small < 60
