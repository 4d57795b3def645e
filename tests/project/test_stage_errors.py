"""Mistakes that a stage tells: one line, exit code 2, nothing half-written."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from forks import of_size, run_stages
from project import run_dvc, set_params

pytestmark = pytest.mark.slow


@pytest.fixture
def copy(made_run: Path, tmp_path: Path) -> Path:
    """A project with a corpus and shards, which a test may spoil."""
    made = shutil.ignore_patterns("runs", "evidence")
    return Path(shutil.copytree(made_run, tmp_path / "copy", ignore=made))


CHECK = ("check",)
EPOCHS = {"num_steps": None, "num_epochs": 1, "num_warmup_steps": 60}
# by name: stage, what its line says, and parameters; all other lines: tests/core,
# tests/data, tests/grammar, tests/model/test_factory.py
MISTAKES: dict[str, tuple[Sequence[str], str, dict[str, Any]]] = {
    "other torch": (CHECK, "torch = '1.0.0'", {"environment.torch": "1.0.0"}),
    "no source": (CHECK, "source = 'a.txt': no such", {"corpus.source": "a.txt"}),
    "no deps of the model": (CHECK, "deps = 'a': no such", {"model.deps": "a"}),
    "no such GPUs": (CHECK, "world_sizes: 8 .*GPUs", {"nccl.world_sizes": [8]}),
    "hierarchical on a GPU": (
        CHECK,
        "train.sync = 'hierarchical'.*this one runs on the CPU",
        {"train.sync": "hierarchical", "nccl.world_sizes": [2]},
    ),
    # 40 sentences, 8 a batch: an epoch has five steps, or more of what was cut
    "warm-up of all epochs": (
        of_size(1)[0],
        "params.yaml: train.num_warmup_steps = 60.*below the number",
        {f"train.{key}": value for key, value in EPOCHS.items()},
    ),
    "no shards for so many": (
        of_size(7)[0],
        "data/shards/world-7: no shards for 7 processes.*gloo.world_sizes",
        {},
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_one_line_and_nothing_half_written(
    stages_by_fork: str, copy: Path, name: str
) -> None:
    """All end before any rank starts."""
    words, pattern, params = MISTAKES[name]
    set_params(copy, params)
    (copy / "data/check.txt").unlink(missing_ok=True)
    done = run_stages(stages_by_fork, copy, [words])
    assert done.code == 2, done.output
    (line,) = (line for line in done.output.splitlines() if line)
    assert line.startswith("error: ")
    assert re.search(pattern, line), line
    assert not (copy / "data/check.txt").exists()
    assert [*(copy / "data").rglob("*.tmp"), *(copy / "metrics").rglob("*.tmp")] == []


@pytest.mark.pipeline
def test_through_dvc_the_same_line(copy: Path) -> None:
    """A loss that becomes NaN in a rank."""
    set_params(copy, {"train.learning_rate": 1e9})
    code, output = run_dvc(copy, "repro", "train@2")
    assert code == 255
    assert "error: train: the loss is" in output
    assert "a smaller train.learning_rate" in output
    assert "Traceback" not in output
    assert "torch.distributed" not in output
    assert not (copy / "data/runs").exists()
