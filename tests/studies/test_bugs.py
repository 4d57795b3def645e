"""The zoo: every bug is caught and located with its cause, and no clean run."""

from dataclasses import replace
from functools import cache

import pytest
from bugs import BUGS, Bug
from subjects import MODELS, NUM_STEPS, make_run
from thorough import thorough_after

from minitrain.check.check import Ladder, examine
from minitrain.check.trial import run_alone
from minitrain.proof.evidence import Evidence
from minitrain.sync.guarantees import Defaults

pytestmark = pytest.mark.slow

ALTERS_NOTHING = ["redundant_sync"]
UNKNOWN = ["mismatched_bucket_order"]


@cache
def one_process(model: str, steps: int) -> Evidence:
    return run_alone(make_run(model, steps=steps))


def ladder_of(bug: Bug) -> Ladder:
    steps = bug.steps(NUM_STEPS)
    trial = make_run(bug.model, steps=steps)
    one = one_process(bug.model, steps)
    return examine(trial, 2, bug.inject, timeout_s=120, one=one)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_bug_is_caught_and_located(bug: Bug) -> None:
    ladder = ladder_of(bug)
    assert bug.check in ladder.breaches, str(ladder)
    if bug.name in ALTERS_NOTHING:
        assert ladder.breaches == [bug.check]
        assert ladder.divergence is None
        return
    assert ladder.divergence is not None
    assert ladder.divergence.step == bug.step
    assert bug.cause in ladder.divergence.cause
    assert (ladder.divergence.cause == "unknown") == (bug.name in UNKNOWN)


def test_ranks_that_agree_are_no_proof() -> None:
    """Bugs that a comparison between ranks would miss."""
    silent = {bug.name for bug in BUGS if bug.check not in ("ranks", "reduced_once")}
    assert {"sum_for_mean", "scaled_loss", "mean_of_means"} <= silent
    for name in ("sum_for_mean", "mean_of_means"):
        bug = next(bug for bug in BUGS if bug.name == name)
        assert ladder_of(bug).rungs["ranks"].verdict == "equal"


@pytest.mark.parametrize("world_size", thorough_after(1, [2, 3, 4]))
@pytest.mark.parametrize("model", MODELS)
def test_clean_run_is_no_false_alarm(model: str, world_size: int) -> None:
    trial = make_run(model, optimizer="sgd" if world_size == 3 else "adamw")
    tuning = Defaults(find_unused_parameters=model == "spare_parameter")
    trial = replace(trial, tuning=tuning)
    ladder = examine(trial, world_size, timeout_s=120)
    assert ladder.verdict == "proven", str(ladder)
    assert ladder.divergence is None
