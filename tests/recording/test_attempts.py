"""Ranks that torchrun starts again (``--max-restarts``): a recording each time."""

import shutil
import sys
from pathlib import Path

import pytest
from project import ROOT, run_in

from minitrain.cli.recording_words import recordings_in_words
from minitrain.compare.recordings import compare_recordings
from minitrain.core.errors import UserError
from minitrain.recording.format import (
    attempt_of,
    folder_of_attempt,
    last_attempt,
    path_of_rank,
    read_recording,
)
from minitrain.recording.shown import show

# rank 1 is killed at step 8 of the first attempt; checkpoints are of steps 0, 3, 6, ...
TRAIN = """
import os, signal
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, size, first = dist.get_rank(), dist.get_world_size(), 0
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(6, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
x = torch.randn(96, 6)
if os.path.exists("saved"):
    saved = torch.load("saved")
    first = saved["step"]
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
for step in range(first, 12):
    if step % 3 == 0 and rank == 0:
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(states | {"step": step}, "new")
        os.rename("new", "saved")
    if step == 8 and rank == 1 and first == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    model(x[8 * step + rank : 8 * step + 8 : size]).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_killed_rank_leaves_two_attempts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    python, run = sys.executable, tmp_path / "run"
    torchrun = [python, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node=2", "--max-restarts=2", "train.py"]
    record = [Path(python).with_name("minitrain"), "record", "--every=1", run, "--"]
    more = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    # else gloo may find the addresses of the attempt before in the store
    more["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    done = run_in(tmp_path, *record, *command, **more)
    assert done.returncode == 0, done.stderr[-4000:]
    assert [path.name for path in sorted(run.iterdir())] == ["attempt-0", "attempt-1"]
    # the folder stands for the last attempt
    assert show(run) == show(run / "attempt-1")
    assert show(run)["ended"]
    found = compare_recordings(run / "attempt-0", run)
    text = recordings_in_words(found)
    assert "expected difference: B resumes A at step 6" in text
    assert {step.mark for step in found.steps} == {"="}
    again = run_in(tmp_path, *record, "true", **more)
    assert again.returncode == 2
    assert "run: has a recording; name another folder" in again.stderr


def made(folder: Path, *attempts: int) -> None:
    for number in attempts:
        (folder / f"attempt-{number}").mkdir()
        path_of_rank(folder / f"attempt-{number}", 0).touch()


@pytest.mark.parametrize(
    ("hosts", "recorded", "expected"),
    [
        # on one host a second recording is refused
        ("1", [0], 0),
        # a host that did not fail keeps its count of restarts
        ("2", [], 0),
        ("2", [0], 1),
        # together they may fail more often than each
        ("2", [0, 1, 2], 3),
    ],
)
def test_each_host_records_the_next_attempt(
    hosts: str,
    recorded: list[int],
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "1")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    monkeypatch.setenv("GROUP_WORLD_SIZE", hosts)
    made(tmp_path, *recorded)
    assert attempt_of(folder_of_attempt(tmp_path, 0)) == expected
    # ranks of the other host may not have begun
    assert folder_of_attempt(tmp_path, 1).name == "attempt-0"


def test_last_attempt_is_the_one_with_the_largest_number(tmp_path: Path) -> None:
    made(tmp_path, 2, 10, 9)
    (tmp_path / "attempt-11").mkdir()
    (tmp_path / "attempt-12").touch()
    shutil.copytree(tmp_path / "attempt-10", tmp_path / "attempt-10.bak")
    assert last_attempt(tmp_path).name == "attempt-10"
    # a recording of each kind would hide the other
    path_of_rank(tmp_path, 0).touch()
    with pytest.raises(UserError, match="has a recording next to attempt-10/"):
        read_recording(tmp_path)
