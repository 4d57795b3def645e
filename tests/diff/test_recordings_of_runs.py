"""Recordings of a loop as users write it, on one process and on two."""

from dataclasses import replace
from pathlib import Path

import pytest
from raw_ddp import Setting, train

from minitrain.diff.recordings import RecordingsCompared, compare_recordings
from minitrain.distributed.launcher import launch
from minitrain.record.twin import VARIABLE

SEEDS = range(12)


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
    monkeypatch.setenv(VARIABLE, "1")
    launch(train_seeds, 1, tmp_path / "twin", setting)
    monkeypatch.delenv(VARIABLE)
    for seed in map(str, SEEDS):
        one, two, again, twin = (
            tmp_path / name / seed for name in ("1", "2", "again", "twin")
        )
        assert compare_recordings(two, again).verdict == "equal bits"
        for pair in ((one, two), (one, two, twin), (one, twin)):
            found = compare_recordings(*pair)
            assert found.verdict == "same computation within rounding"
            assert [s.step for s in found.steps] == [0, 1, 2, 5, 10]


# what ranks do alike is silent among them
WRONG = {
    "mean_of_means": ("gradients", 0, "B: a mean of means"),
    "learning_rate_divided": (
        "learning rate",
        0,
        "B's learning rate is divided by the number of processes",
    ),
    "optimizer_state_not_restored": ("parameters", 3, "not restored?"),
    "low_precision_reduce": ("gradients", 0, "B: reduced in lower precision?"),
    "scaled_loss": ("gradients", 0, "8 times as large: a scaled loss"),
    "another_data_seed": ("data", 0, "another order|other samples|samples again"),
    "sum_for_mean": ("gradients", 0, "summed instead of averaged in B"),
    "averaged_twice": ("gradients", 0, "divided by the number of processes (2) twice"),
    "transfer_lost": ("gradients", 3, "the gradient of rank 1 is missing"),
    "group_of_one": ("gradients", 0, "keeps its own gradient: not synchronized"),
}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("one") / "run"


@pytest.mark.parametrize("bug", WRONG)
def test_bug_of_two_ranks_beside_one_process(
    one: Path, tmp_path: Path, bug: str
) -> None:
    if not one.exists():
        launch(train, 1, one, "", Setting())
    launch(train, 2, tmp_path / "two", bug, Setting())
    found: RecordingsCompared = compare_recordings(one, tmp_path / "two")
    assert found.verdict == "different"
    assert found.first
    what, step, causes = WRONG[bug]
    assert (found.first.what, found.first.step) == (what, step)
    assert any(cause in found.first.cause for cause in causes.split("|"))
