"""Every kind of run goes on where it was stopped, to the bit; what is forgotten shows.

The same for every step of 100, in new processes: studies/resume.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from resume_cases import CASES, write_samples
from resumed import SAVING, UNDISTURBED, Left, differing, run_stopped
from thorough import thorough_after

from minitrain.train import resume
from minitrain.train.worker import Worker

# PowerSGD compresses from its eleventh step on; an epoch ends after each sixth
STEPS, STEPS_PER_EPOCH = 16, 6
END_OF_EPOCH, MID_EPOCH = 12, 14
# a stop; the start has that of three
LIMIT_S = 25
pytestmark = pytest.mark.slow


# optimizer, buffers, random numbers, scaler, error memory
KINDS = ["ddp, 2 ranks", "fsdp", "batch norm", "dropout, invariant", "fp16", "powersgd"]
OTHERS = [name for name in CASES if name not in KINDS]


@dataclass(frozen=True)
class Saved:
    """A case that saved after every step, and what one left that saved nothing."""

    name: str
    folder: Path
    undisturbed: list[Left]
    saving: list[Left]

    def stopped(self, stop: int, spoil: Callable[[], None] | None = None) -> list[str]:
        """What differs of what the ranks left that went on after ``stop`` steps."""
        config = CASES[self.name].config(self.folder / "shards", STEPS)
        size = CASES[self.name].world_size
        (ranks,) = run_stopped(config, size, self.folder, [stop], spoil, LIMIT_S)
        # else all of it is made again, which shows nothing
        assert {rank.went_on_from for rank in ranks} == {stop}, ranks[0].said
        return differing(ranks, self.undisturbed)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Saved]:
    @cache
    def save(name: str) -> Saved:
        folder = tmp_path_factory.mktemp("case")
        case = CASES[name]
        config = case.config(write_samples(folder / "shards", STEPS_PER_EPOCH), STEPS)
        stops = [UNDISTURBED, SAVING]
        found = run_stopped(config, case.world_size, folder, stops, None, LIMIT_S)
        return Saved(name, folder, *found)

    return save


@pytest.mark.parametrize("name", thorough_after(len(KINDS), [*KINDS, *OTHERS]))
def test_a_run_that_goes_on_leaves_the_same_bytes(
    name: str, saved: Callable[[str], Saved]
) -> None:
    case = saved(name)
    assert len(case.undisturbed) == CASES[name].world_size
    assert differing(case.saving, case.undisturbed) == []
    for stop in (END_OF_EPOCH, MID_EPOCH):
        differ = case.stopped(stop)
        assert differ == [], stop


def no_first_steps() -> None:
    resume.REPEATED = 0


def forgetting(key: str, part: str | None) -> None:
    """Ranks go on with what they have after their first steps, in the place of what
    they kept under ``key``, or of a ``part`` of that.
    """

    restore = Worker.restore

    def forgetful(self: Worker, before: dict[str, Any]) -> None:
        now = self.kept()[key]
        if part is not None:
            now = {**before[key], part: now[part]}
        restore(self, {**before, key: now})

    Worker.restore = forgetful  # type: ignore[method-assign]


FORGOTTEN = [
    ("dropout, invariant", "streams", None),
    ("powersgd", "sync", "error_dict"),
    ("fp16", "precision", "_growth_tracker"),
    ("fp16", "precision", "scale"),
    ("ddp, 2 ranks", "optimizer", None),
    ("batch norm", "model", "norm.running_mean"),
    ("dropout", "random", None),
    ("fsdp", "optimizer", None),
    ("powersgd", "sync", "iter"),
    ("zero1", "optimizer", None),
    ("one_copy", "optimizer", None),
    ("batch norm", "model", "norm.num_batches_tracked"),
]


@pytest.mark.parametrize(("name", "key", "part"), thorough_after(7, FORGOTTEN))
def test_what_is_forgotten_shows(
    name: str, key: str, part: str | None, saved: Callable[[str], Saved]
) -> None:
    differ = saved(name).stopped(MID_EPOCH, partial(forgetting, key, part))
    assert differ
    # what was recorded before is there all the same
    assert not {"ledger", "timed steps"} & {*differ}


def test_from_three_ranks_on_the_first_steps_decide_bits(
    saved: Callable[[str], Saved],
) -> None:
    """Two add alike with any buckets: a sum of two has one order."""
    differ = saved("ddp, 2 ranks").stopped(MID_EPOCH, no_first_steps)
    # which name the buckets, and tensors of the first steps, of which there are none
    assert {*differ} == {"hashes", "sampled"}
    differ = saved("ddp, 3 ranks").stopped(MID_EPOCH, no_first_steps)
    assert "states" in differ


def other_bits() -> None:
    """As on a machine that computes otherwise: a parameter begins with another bit."""
    build = Worker.__init__

    def differently(self: Worker, *args: Any, **named: Any) -> None:
        build(self, *args, **named)
        with torch.no_grad():
            parameter = next(self.model.parameters())
            parameter.copy_(parameter.nextafter(parameter.new_tensor(torch.inf)))

    Worker.__init__ = differently  # type: ignore[method-assign]


def test_a_checkpoint_of_other_bits_is_not_used(saved: Callable[[str], Saved]) -> None:
    """The run starts afresh, and leaves what it would have left without it."""
    case = saved("ddp, 2 ranks")
    config = CASES[case.name].config(case.folder / "shards", STEPS)
    stops = [MID_EPOCH, UNDISTURBED]
    found, alone = run_stopped(config, 2, case.folder, stops, other_bits, LIMIT_S)
    assert resume.NOT_USED in found[0].said
    assert [rank.went_on_from for rank in found] == [0, 0]
    assert differing(found, alone) == []
    assert "states" in differing(found, case.undisturbed)
