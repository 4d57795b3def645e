"""Bugs that all ranks have alike, planted in a raw torch loop: their recording against
that of one process shows them, at the step at which they act.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest
from raw_ddp import LATER, STEPS_PER_EPOCH, Setting, run, train

from minitrain.compare.recordings import RecordingsCompared, compare_recordings
from minitrain.harness.launcher import launch


@dataclass(frozen=True)
class Parted:
    """Where the runs part, and the cause."""

    bug: str
    met_in: str
    what: str
    step: int
    cause: str


ZOO = [
    Parted("scaled_loss", "torchtune #2172", "gradients", 0, "a scaled loss"),
    Parted("mean_of_means", "transformers #34242", "gradients", 0, "a mean of means"),
    Parted(
        "learning_rate_divided",
        "verl-SpeCo #29",
        "learning rate",
        0,
        "divided by the number of processes",
    ),
    Parted(
        "optimizer_state_not_restored",
        "Lightning #17543",
        "parameters",
        LATER,
        "not restored?",
    ),
    Parted("another_data_seed", "documented trap of samplers", "data", 0, "other"),
    Parted("duplicate_samples", "pytorch #25162", "data", 0, "again"),
    Parted("missing_set_epoch", "DistributedSampler", "data", STEPS_PER_EPOCH, "other"),
    Parted(
        "low_precision_reduce",
        "torch's bf16 hook",
        "gradients",
        0,
        "reduced in lower precision",
    ),
    # what the rules take a note of, for it may be meant
    Parted("sum_for_mean", "pytorch #162338", "gradients", 0, "instead of averaged"),
    Parted("averaged_twice", "verl #2344", "gradients", 0, "twice in B"),
    # what they find as well
    Parted("transfer_lost", "pytorch #84803", "gradients", LATER, "missing from"),
]


@pytest.fixture(scope="module")
def of_one_process(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process recorded that computes the whole batch at once."""
    folder = tmp_path_factory.mktemp("one")
    run(folder, "", Setting(), 0, 1)
    return folder


def compared(
    one: Path, folder: Path, bug: str, ranks: int = 2, setting: Setting | None = None
) -> RecordingsCompared:
    launch(train, ranks, folder, bug, setting)
    return compare_recordings(one, folder)


@pytest.mark.parametrize("wanted", ZOO, ids=lambda wanted: wanted.bug)
def test_against_one_process_shows(
    tmp_path: Path, of_one_process: Path, wanted: Parted
) -> None:
    found = compared(of_one_process, tmp_path, wanted.bug)
    assert found.verdict == "different"
    assert found.first is not None
    assert found.doubt is None
    assert (found.first.what, found.first.step) == (wanted.what, wanted.step)
    assert wanted.cause in found.first.cause


@pytest.mark.parametrize("ranks", [2, 4])
def test_without_a_bug_it_is_the_same_computation(
    tmp_path: Path, of_one_process: Path, ranks: int
) -> None:
    found = compared(of_one_process, tmp_path, "", ranks)
    assert found.verdict == "same computation within rounding", found.first
    assert found.alarms == {"A": [], "B": []}


@pytest.mark.parametrize("bug", ["wrapper_made_anew", "redundant_sync"])
def test_what_only_costs_time_is_the_same_computation(
    tmp_path: Path, of_one_process: Path, bug: str
) -> None:
    found = compared(of_one_process, tmp_path, bug)
    assert found.verdict == "same computation within rounding", found.first


@pytest.mark.parametrize(
    ("bug", "step", "cause"),
    [
        ("sum_for_mean", 0, "2 times as large: summed instead of averaged in B"),
        ("gradients_kept", 1, "B: the gradients of the step before are still in them"),
    ],
)
def test_a_pattern_is_the_cause_also_in_16_bits(
    tmp_path: Path, bug: str, step: int, cause: str
) -> None:
    """Where one process computes other bits than two."""
    setting = Setting(autocast=True)
    run(tmp_path / "one", "", setting, 0, 1)
    found = compared(tmp_path / "one", tmp_path / "two", bug, setting=setting)
    assert found.verdict == "different"
    assert found.first
    assert found.first.what == "gradients"
    assert (found.first.step, found.first.cause[: len(cause)]) == (step, cause)
