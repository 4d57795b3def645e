"""`dvc repro`, interrupted while ranks train, and then started again.

Each case is a trial of the chaos study with a fault of its own: a signal, and to whom.
"""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from signal import SIGINT, SIGKILL, SIGTERM, Signals

import pytest
from copies import Undisturbed
from processes import kill_all, send, wait_until, with_role
from project import PARAMS_FILE
from runs import Trial
from thorough import thorough_after
from trials import run_trial
from waiting import GENEROUS_S
from world import START_S, World
from wreck import Fault

pytestmark = [pytest.mark.pipeline, pytest.mark.real_launch, pytest.mark.timeout(1800)]

LIMIT_S = 2 * GENEROUS_S
# whether runs go on from one
CHECKPOINTS = "\ncheckpoint:" in PARAMS_FILE.read_text()
PAIR = ("train@2",)
ORPHAN = "error: stopped by SIGTERM"


def to(number: Signals, role: str) -> Callable[[World], str]:
    """To the first process of that role as soon as ranks train."""

    def do(world: World) -> str:
        assert len(world.await_role("rank")) > 0
        # they import torch for a while
        limit_s = START_S if CHECKPOINTS else 0.3 * world.took_s
        wait_until(lambda: world.ended or world.checkpoints(), limit_s)
        if role == "group":
            world.signal_group(number)
        elif role == "all":
            kill_all(world.mark)
        else:
            send(number, with_role(world.mark, role)[:1])
        return role

    return do


# the signal, to whom, exit code of `dvc repro`, and the line
CASES = {
    "Ctrl-C": (SIGINT, "group", 255, "error: interrupted"),
    # the ranks start again by themselves
    "kill -9 of a rank": (SIGKILL, "rank", 0, ""),
    "kill -9 of DVC": (SIGKILL, "dvc", -9, ORPHAN),
    "SIGTERM to DVC": (SIGTERM, "dvc", -15, ORPHAN),
    "kill -9 of all": (SIGKILL, "all", -9, ""),
}


@pytest.fixture(scope="module")
def trials(
    request: pytest.FixtureRequest, undisturbed: Undisturbed
) -> dict[str, Trial]:
    """What became of each case; two at a time."""
    items = [item for item in request.session.items if item.path == request.path]
    names = [item.callspec.params["name"] for item in items]

    def run(numbered: tuple[int, str]) -> Trial:
        number, name = numbered
        fault = Fault(to(*CASES[name][:2]), PAIR)
        return run_trial(1000 + number, name, fault, 35000, undisturbed, LIMIT_S)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(names, pool.map(run, enumerate(names)), strict=True))


@pytest.mark.parametrize("name", thorough_after(3, CASES))
def test_next_repro_ends_in_the_same_bytes(trials: dict[str, Trial], name: str) -> None:
    """And nothing is left: no process, segment, temporary file."""
    _, _, code, line = CASES[name]
    assert trials[name].wrong == ""
    assert trials[name].exit_code == code
    assert (trials[name].outcome == "restarted") == (code == 0)
    assert re.fullmatch(line, trials[name].said), trials[name].said
    assert (trials[name].went_on_from is not None) == (CHECKPOINTS and code != 0)
