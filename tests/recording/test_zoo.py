"""Data-parallel bugs planted in a raw torch loop, and what finds each in its recording;
right loops of all kinds are silent.

Faults that ranks show among themselves are found by a rule, at the first recorded step
after they act. Faults that all ranks share show against the recording of one process.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from raw_ddp import LATER, STEPS_PER_EPOCH, VICTIM, Setting, run, train
from thorough import thorough_after

from minitrain.comm.groups import distributed
from minitrain.compare.recordings import RecordingsCompared, compare_recordings
from minitrain.core.errors import RankError
from minitrain.harness.launcher import launch
from minitrain.recording.format import Row, read_recording

FIRST, HEAD = "first.weight", "head.weight"


@dataclass(frozen=True)
class Found:
    rule: str
    step: int
    cause: str
    tensor: str = FIRST
    ranks: tuple[int, ...] = (VICTIM,)
    kind: str = "alarm"


def note(rule: str, step: int, cause: str) -> Found:
    return Found(rule, step, cause, "", (), "note")


NEVER_SENT = "rank 0's weights are not broadcast"
ANEW = "replaced or trainable only after DistributedDataParallel was built"
# by bug, what a rule finds; and where people met it
ZOO: dict[str, Found] = {
    # OpenTSLM #49
    "wrapper_bypassed": Found("gradients", LATER, "without a wrapper, unlike before"),
    # verl #7493
    "group_of_one": Found("gradients", 0, "in a group of one rank"),
    # documented trap of no_sync
    "missing_last_sync": Found("gradients", LATER, "no_sync was on"),
    # pytorch #162338, verl #2344
    "sum_for_mean": note("mean", 0, "summed instead of averaged"),
    "averaged_twice": note("mean", 1, "by the number of ranks twice"),
    "missing_broadcast": Found("parameters", 0, NEVER_SENT, HEAD),
    "buffers_not_synchronized": Found(
        "buffers", 1, "no wrapper broadcasts", "norm.running_mean", kind="note"
    ),
    "missing_set_epoch": note("same batch", STEPS_PER_EPOCH, "set_epoch"),
    # Lightning #4092
    "redundant_sync": note("synchronization", 0, "accumulated without no_sync"),
    # torch itself refuses the second step
    "unused_parameter": Found("gradients", 0, "waits for spare, which has no gradient"),
    "mismatched_bucket_order": Found("gradients", 0, "other order of the buckets"),
    # pytorch #104336
    "parameters_replaced": Found("gradients", 0, ANEW, HEAD),
    "wrapper_made_anew": note("wrapper", 1, "wrapped another time"),
    # DeepSpeed #1801
    "clipped_by_own_norm": Found("gradients", 0, "scaled, by a number of its own"),
    # pytorch #84803
    "transfer_lost": Found("mean", LATER, "a transfer that was"),
    "transfer_lost_to_one": Found("gradients", LATER, "from the others"),
    # pytorch #5059
    "workers_alike": note("same batch", 1, "same random state"),
    "no_sampler": Found("inputs", 0, "not divided among the ranks", ""),
    # Lightning #17543
    "state_restored_on_one_rank": Found("parameters", LATER, "on some ranks only?"),
}
# by bug, what differs first from one process: what, the step, and a part of the cause
COMPARED: dict[str, tuple[str, int, str]] = {
    # torchtune #2172, transformers #34242, verl-SpeCo #29
    "scaled_loss": ("gradients", 0, "a scaled loss"),
    "mean_of_means": ("gradients", 0, "a mean of means"),
    "learning_rate_divided": ("learning rate", 0, "divided by the number of processes"),
    # Lightning #17543, pytorch #25162
    "optimizer_state_not_restored": ("parameters", LATER, "not restored?"),
    "another_data_seed": ("data", 0, "other"),
    "duplicate_samples": ("data", 0, "again"),
    "missing_set_epoch": ("data", STEPS_PER_EPOCH, "other"),
    # torch's bf16 hook
    "low_precision_reduce": ("gradients", 0, "reduced in lower precision"),
    # what the rules take a note of, for it may be meant
    "sum_for_mean": ("gradients", 0, "instead of averaged"),
    "averaged_twice": ("gradients", 0, "twice in B"),
    # what they find as well
    "transfer_lost": ("gradients", LATER, "missing from"),
}
# what all ranks do alike no rule takes for a fault
ALIKE = [bug for bug in COMPARED if bug not in ZOO and bug != "duplicate_samples"]


class Runs:
    """Recordings of runs with a bug, each made once; and that of one process which
    computes the whole batch at once.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.of = cache(self._of)
        run(folder / "one", "", Setting(), 0, 1)

    def _of(self, bug: str, ranks: int) -> Path:
        folder = self.folder / f"{bug}-{ranks}"
        setting = Setting(passes=2 if bug == "redundant_sync" else 1)
        refused = pytest.raises(RankError, match="finished reduction")
        with refused if bug == "unused_parameter" else nullcontext():
            launch(train, ranks, folder, bug, setting)
        return folder

    def alarms(self, bug: str) -> list[Row]:
        """What rank 0 wrote of alarms and notes; all ranks have the same."""
        found = [one.alarms for one in read_recording(self.of(bug, 2)).ranks.values()]
        assert found[0] == found[1]
        return found[0]

    def compared(self, bug: str, ranks: int = 2) -> RecordingsCompared:
        return compare_recordings(self.folder / "one", self.of(bug, ranks))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("zoo"))


@pytest.mark.parametrize("bug", ZOO)
def test_the_rules_find(runs: Runs, bug: str) -> None:
    wanted = ZOO[bug]
    first = runs.alarms(bug)[0]
    place = first["kind"], first["rule"], first["step"], first["tensor"]
    assert place == (wanted.kind, wanted.rule, wanted.step, wanted.tensor)
    assert tuple(first["ranks"]) == wanted.ranks
    assert wanted.cause in first["line"]


@pytest.mark.parametrize("bug", COMPARED)
def test_against_one_process_shows(runs: Runs, bug: str) -> None:
    what, step, cause = COMPARED[bug]
    found = runs.compared(bug)
    assert (found.verdict, found.doubt) == ("different", None)
    assert found.first is not None
    assert (found.first.what, found.first.step) == (what, step)
    assert cause in found.first.cause
    severe = [row for row in runs.alarms(bug) if row["kind"] == "alarm"]
    assert severe == [] or bug not in ALIKE


# without a bug, and with what only costs time
@pytest.mark.parametrize(("bug", "ranks"), [("", 2), ("", 4), ("wrapper_made_anew", 2)])
def test_without_a_bug_it_is_the_same_computation(
    runs: Runs, bug: str, ranks: int
) -> None:
    found = runs.compared(bug, ranks)
    assert found.verdict == "same computation within rounding", found.first
    assert bug or found.alarms == {"A": [], "B": []}


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
    # one process computes other bits than two
    setting = Setting(autocast=True)
    run(tmp_path / "one", "", setting, 0, 1)
    launch(train, 2, tmp_path / "two", bug, setting)
    found = compare_recordings(tmp_path / "one", tmp_path / "two")
    assert found.verdict == "different"
    assert found.first is not None
    assert found.first.what == "gradients"
    assert (found.first.step, found.first.cause[: len(cause)]) == (step, cause)


def test_a_rank_with_fewer_batches_says_whom_it_waited_for(tmp_path: Path) -> None:
    # the other one is in a step that needs both
    setting = Setting(timeout_s=1.0)
    with pytest.raises(RankError):
        launch(train, 2, tmp_path, "fewer_batches", setting)
    recording = read_recording(tmp_path)
    last = setting.steps - 2
    (found,) = recording.ranks[VICTIM].alarms
    assert (found["kind"], found["rule"], found["ranks"]) == ("note", "ranks", [0])
    assert "rank 0: did not come to the end within 1 s" in found["line"]
    assert f"last heard of: step {last}; probable cause" in found["line"]
    assert f"rank {VICTIM} ran out of batches" in found["line"]
    assert recording.ranks[0].end is None


STEPS = 6
# of 64 samples: epochs end with a part of a batch, and samplers pad it
BATCH = 16
PADDED = (3, "padding")
SETTINGS: list[dict[str, Any]] = [
    {"dropout": 0.2},
    {"autocast": True},
    {"clip": 0.1},
    {"warm_up": 3},
    {"scaler": True, "clip": 0.1},
    {"adam": True, "every": 2},
    {"norm": True, "passes": 2},
    {"dropout": 0.1, "autocast": True, "passes": 2, "clip": 0.5, "warm_up": 2},
    {"scaler": True, "passes": 2, "adam": True, "norm": True, "dropout": 0.3},
]
# a number of ranks is launched once, and trains all of them
CLEAN = [
    (seed, Setting(**{"seed": seed, "steps": STEPS, "batch": BATCH} | setting))
    for seed, setting in enumerate(SETTINGS)
]


def train_all(folder: Path) -> None:
    with distributed(timeout_s=60) as (rank, world_size):
        for number, setting in CLEAN:
            run(folder / str(number), "", setting, rank, world_size)


@pytest.mark.parametrize("ranks", thorough_after(2, [1, 3, 2, 4]))
def test_right_loops_are_silent(
    tmp_path: Path, ranks: int, capfd: pytest.CaptureFixture[str]
) -> None:
    launch(train_all, ranks, tmp_path)
    for number, setting in CLEAN:
        recording = read_recording(tmp_path / str(number))
        assert recording.world_size == ranks
        for one in recording.ranks.values():
            # three ranks do not divide the samples
            lines = [r["line"] for r in one.alarms if (ranks, r["rule"]) != PADDED]
            assert lines == [], setting
            assert one.end is not None
            assert one.end["steps"] == {"0": STEPS}
    # nothing but the line at the end of each recording
    said = capfd.readouterr().err
    assert said.count("minitrain: ") == said.count("minitrain: recorded ")
