"""The loops of examples/, each with a recording: as users start them, or by forks."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from project import ROOT, run_in
from waiting import GENEROUS_S

from minitrain.recording.format import OfRank, read_recording

# what each imports that is slow
IMPORTED = {
    "nanogpt_style": (),
    "with_accelerate": ("accelerate.utils",),
    "with_fabric": ("lightning_fabric",),
    "with_trainer": ("transformers.trainer", "transformers.models.gpt2.modeling_gpt2"),
    "with_lightning": ("lightning.pytorch",),
}
# those in examples/
LOOPS = [*IMPORTED][:-1]
# the frameworks are installed in another environment than the tests
PEERS = ROOT / ".venv-peers/bin/python"
MINITRAIN = [Path(sys.executable).with_name("minitrain")]
Run = Callable[..., str]


def python_of(name: str) -> Path:
    plain = name == "nanogpt_style"
    if not plain and not PEERS.exists():
        pytest.skip("no .venv-peers; make test makes it")
    return Path(sys.executable) if plain else PEERS


def variables_of(temporary: str | Path) -> dict[str, str]:
    # without it, transformers asks the hub of Hugging Face for files
    return {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)}


def script_of(name: str) -> Path:
    return ROOT / f"examples/{name}.py"


def torchrun(world_size: int, temporary: Path) -> list[str]:
    run = ["-m", "torch.distributed.run", "--standalone", f"--log-dir={temporary}/logs"]
    return [*run, f"--nproc-per-node={world_size}"] if world_size > 1 else []


def run_command(
    command: Sequence[str | Path], temporary: Path, given: str = "", **variables: str
) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join([str(ROOT / "examples"), str(ROOT)])
    own = {"PYTHONPATH": path, **variables_of(temporary), **variables}
    return run_in(temporary, *command, timeout_s=2 * GENEROUS_S, given=given, **own)


def record(
    folder: Path, command: Sequence[str | Path], *options: str, given: str = ""
) -> "subprocess.CompletedProcess[str]":
    """Run a command under ``minitrain record``, in the folder around ``folder``."""
    words = [*MINITRAIN, "record", *options, folder, "--", *command]
    return run_command(words, folder.parent, given)


def assert_equal_rows(a: Path, b: Path, world_size: int) -> None:
    """Two recordings have equal rows but for the losses, which no hook sees."""
    ours, theirs = read_recording(a), read_recording(b)
    assert ours.world_size == theirs.world_size == world_size
    for rank, of in ours.ranks.items():
        assert _rows(theirs.ranks[rank]) == _rows(of)


def _rows(of: OfRank) -> list[dict[str, object]]:
    steps = [{k: v for k, v in row.items() if k != "loss"} for row in of.steps.values()]
    return [of.header, *steps, of.end or {}]
