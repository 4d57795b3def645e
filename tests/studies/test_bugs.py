"""The zoo: every bug is caught and located with its cause."""

from functools import cache

import pytest
from bugs import BUGS, Bug
from subjects import NUM_STEPS, make_run

from minitrain.check.data_parallel import examine
from minitrain.check.trial import run_alone
from minitrain.proof.evidence import Evidence

pytestmark = pytest.mark.slow

ALTERS_NOTHING = ["redundant_sync"]
UNKNOWN = ["mismatched_bucket_order"]
# what a comparison between ranks would miss
AGREE = ["sum_for_mean", "mean_of_means"]


@cache
def one_process(model: str, steps: int) -> Evidence:
    return run_alone(make_run(model, steps=steps))


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_bug_is_caught_and_located(bug: Bug) -> None:
    steps = bug.steps(NUM_STEPS)
    trial, one = make_run(bug.model, steps=steps), one_process(bug.model, steps)
    ladder = examine(trial, 2, bug.inject, timeout_s=120, one=one)
    assert bug.check in ladder.breaches, str(ladder)
    if bug.name in AGREE:
        assert ladder.rungs["ranks"].verdict == "equal"
    if bug.name in ALTERS_NOTHING:
        assert ladder.breaches == [bug.check]
        assert ladder.divergence is None
        return
    assert ladder.divergence is not None
    assert ladder.divergence.step == bug.step
    assert bug.cause in ladder.divergence.cause
    assert (ladder.divergence.cause == "unknown") == (bug.name in UNKNOWN)
