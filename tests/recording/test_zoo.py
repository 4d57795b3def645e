"""Data-parallel bugs planted in a raw torch loop, and what finds each in its recording.

What ranks show among themselves a rule finds, at the first recorded step after it acts.
What all ranks do alike and wrong, only a recording of one process shows: a bug that is
silent here is in test_zoo_verify.py.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest
from raw_ddp import LATER, STEPS_PER_EPOCH, VICTIM, Setting, train

from minitrain.core.errors import RankError
from minitrain.harness.launcher import launch
from minitrain.recording.format import Row, read_recording

FIRST = "first.weight"


@dataclass(frozen=True)
class Found:
    """What the first line of the recorder says: of which rule, where, and the cause."""

    bug: str
    met_in: str
    rule: str
    step: int
    cause: str
    tensor: str = FIRST
    ranks: tuple[int, ...] = (VICTIM,)
    kind: str = "alarm"
    passes: int = 1


def note(
    bug: str, met_in: str, rule: str, step: int, cause: str, passes: int = 1
) -> Found:
    """What may be meant, and concerns all ranks."""
    return Found(bug, met_in, rule, step, cause, "", (), "note", passes)


ZOO = [
    Found(
        "wrapper_bypassed",
        "OpenTSLM #49",
        "gradients",
        LATER,
        "called without its wrapper, unlike before",
    ),
    Found("group_of_one", "verl #7493", "gradients", 0, "in a group of one rank"),
    Found(
        "missing_last_sync",
        "documented trap of no_sync",
        "gradients",
        LATER,
        "no_sync was on",
    ),
    note("sum_for_mean", "pytorch #162338", "mean", 0, "summed instead of averaged"),
    note("averaged_twice", "verl #2344", "mean", 1, "by the number of ranks twice"),
    Found(
        "missing_broadcast",
        "documented contract of DDP",
        "parameters",
        0,
        "rank 0's weights are not broadcast",
        tensor="head.weight",
    ),
    Found(
        "buffers_not_synchronized",
        "documented option of DDP",
        "buffers",
        1,
        "no wrapper broadcasts them",
        tensor="norm.running_mean",
        kind="note",
    ),
    note(
        "missing_set_epoch",
        "DistributedSampler",
        "same batch",
        STEPS_PER_EPOCH,
        "set_epoch",
    ),
    note(
        "redundant_sync",
        "Lightning #4092",
        "synchronization",
        0,
        "accumulated without no_sync",
        passes=2,
    ),
    Found(
        "unused_parameter",
        "documented contract of DDP",
        "gradients",
        0,
        "waits for spare, which has no gradient",
    ),
    Found(
        "mismatched_bucket_order",
        "documented contract of DDP",
        "gradients",
        0,
        "other order of the buckets",
    ),
    Found(
        "parameters_replaced",
        "pytorch #104336",
        "gradients",
        0,
        "replaced after DistributedDataParallel took the model",
        tensor="head.weight",
    ),
    note("wrapper_made_anew", "pytorch forum", "wrapper", 1, "wrapped anew"),
    Found(
        "clipped_by_own_norm",
        "DeepSpeed #1801",
        "gradients",
        0,
        "clipped, or scaled, by a number of its own",
    ),
    Found("transfer_lost", "pytorch #84803", "mean", LATER, "a transfer that was lost"),
    Found(
        "transfer_lost_to_one", "pytorch #84803", "gradients", LATER, "from the others"
    ),
    note("workers_alike", "pytorch #5059", "same batch", 1, "the same random state"),
    Found(
        "no_sampler",
        "documented contract of DistributedSampler",
        "inputs",
        0,
        "not divided among the ranks",
        tensor="",
    ),
    Found(
        "state_restored_on_one_rank",
        "Lightning #17543",
        "parameters",
        LATER,
        "restored on some ranks only?",
    ),
]
# torch itself refuses the second step
STOPS = {"unused_parameter"}


def alarms_of_run(folder: Path, bug: str, passes: int = 1) -> list[Row]:
    """What rank 0 wrote of alarms and notes; all ranks have the same."""
    run = [folder, bug, Setting(passes=passes)]
    if bug in STOPS:
        with pytest.raises(RankError, match="finished reduction"):
            launch(train, 2, *run)
    else:
        launch(train, 2, *run)
    found = [one.alarms for _, one in sorted(read_recording(folder).ranks.items())]
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize("wanted", ZOO, ids=lambda wanted: wanted.bug)
def test_the_rules_find(tmp_path: Path, wanted: Found) -> None:
    found = alarms_of_run(tmp_path, wanted.bug, wanted.passes)
    assert found, "silent"
    first = found[0]
    place = first["kind"], first["rule"], first["step"], first["tensor"]
    assert place == (wanted.kind, wanted.rule, wanted.step, wanted.tensor)
    assert tuple(first["ranks"]) == wanted.ranks
    assert wanted.cause in first["line"]


@pytest.mark.parametrize(
    "bug",
    [
        "scaled_loss",
        "mean_of_means",
        "learning_rate_divided",
        "optimizer_state_not_restored",
        "another_data_seed",
        "low_precision_reduce",
    ],
)
def test_what_ranks_do_alike_is_silent_here(tmp_path: Path, bug: str) -> None:
    severe = [row for row in alarms_of_run(tmp_path, bug) if row["kind"] == "alarm"]
    assert severe == []


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
    assert f"last heard of rank 0: step {last}; probable cause" in found["line"]
    assert f"rank {VICTIM} ran out of batches" in found["line"]
    assert recording.ranks[0].end is None


def test_a_fault_between_recorded_steps(tmp_path: Path) -> None:
    launch(train, 2, tmp_path, "missing_last_sync", Setting(every=5))
    (found,) = read_recording(tmp_path).ranks[0].alarms
    assert (found["rule"], found["step"], found["ranks"]) == ("parameters", 5, [VICTIM])
    assert "since a step after 2" in found["line"]
    assert "every=1" in found["line"]
