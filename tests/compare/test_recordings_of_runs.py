"""Recordings of a loop as users write it, on one process and on two."""

from dataclasses import replace
from pathlib import Path

import pytest
from raw_ddp import Setting, train

from minitrain.compare.recordings import compare_recordings
from minitrain.harness.launcher import launch
from minitrain.recording.rows import TWIN

pytestmark = pytest.mark.slow

SEEDS = range(3)


def train_seeds(folder: Path, setting: Setting) -> None:
    """All of them as one launch."""
    for seed in SEEDS:
        train(folder / str(seed), "", replace(setting, seed=seed))


@pytest.mark.parametrize("adam", [False, True], ids=["sgd", "adamw"])
def test_one_process_and_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adam: bool
) -> None:
    setting = Setting(adam=adam, every=5)
    for world_size in (1, 2):
        launch(train_seeds, world_size, tmp_path / str(world_size), setting)
    launch(train_seeds, 2, tmp_path / "again", setting)
    monkeypatch.setenv(TWIN, "1")
    launch(train_seeds, 1, tmp_path / "twin", setting)
    monkeypatch.delenv(TWIN)
    for seed in map(str, SEEDS):
        one, two, again, twin = (
            tmp_path / name / seed for name in ("1", "2", "again", "twin")
        )
        assert compare_recordings(two, again).verdict == "equal bits"
        for pair in ((one, two), (one, two, twin), (one, twin)):
            found = compare_recordings(*pair)
            assert found.verdict == "same computation within rounding"
            assert [s.step for s in found.steps] == [0, 1, 2, 5, 10, 11]
            assert [s.end for s in found.steps] == [False] * 5 + [True]
