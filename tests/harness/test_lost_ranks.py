import re
import time
from pathlib import Path

import psutil
import pytest
from faulty_rank import be_a_rank
from project import ROOT, run_python
from thorough import thorough_after
from waiting import GENEROUS_S

from minitrain.core.errors import RankError, UserError
from minitrain.harness.failures import (
    CRASHED,
    EXITED,
    GAVE_UP,
    KILLED,
    LOST,
    RAISED,
    TERMINATED,
    kind_of,
    root_cause,
)
from minitrain.harness.launcher import launch

LIMIT_S = 3
HANGS = f"no answer within {LIMIT_S} s"
AT = r" at step 2, forward, in faulty_rank.py:\d+"
NAME = r"rank {} \(process \d+ on \S+\): "
# fault in the last rank -> its report
OF_THE_LAST = {
    "sleeps": f"{HANGS}, hangs{AT}",
    "works": f"{HANGS}, hangs{AT}",
    "stops": f"{HANGS}, does not respond at step 2, forward",
    "is killed": "killed by SIGKILL at step 2, forward",
    "crashes": f"killed by SIGSEGV{AT}",
    "aborts": f"killed by SIGABRT{AT}",
    "exits 3": "exited with code 3 at step 2, forward",
    "exits 0": "exited with code 0 at step 2, forward",
    "leaves 0": f"SystemExit: 0{AT}",
    "raises": f"ValueError: a bug{AT}",
}


def line_of(how: str, world_size: int, note: Path | None = None) -> str:
    with pytest.raises(RankError) as raised:
        launch(be_a_rank, world_size, how, LIMIT_S, "launch", note, timeout_s=300)
    return str(raised.value).replace("tests/support/", "")


@pytest.mark.parametrize("how", OF_THE_LAST)
def test_rank_that_fails_is_named_with_its_place_in_time(
    how: str, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    line = line_of(how, 3, note=note)
    passed_s = time.time() - float(note.read_text())
    assert re.fullmatch(NAME.format(2) + OF_THE_LAST[how], line)
    assert passed_s < GENEROUS_S


def test_one_process_that_hangs_is_noticed() -> None:
    assert re.fullmatch(NAME.format(0) + OF_THE_LAST["stops"], line_of("stops", 1))


def test_users_mistake_is_said_as_it_is() -> None:
    with pytest.raises(UserError, match=r"^params.yaml: b = 3: must be 4$"):
        launch(be_a_rank, 2, "mistakes", LIMIT_S)


def test_more_data_than_expected_is_a_mismatch() -> None:
    """gloo aborts the receiving process with a page of C++."""
    aborts = NAME.format(0) + OF_THE_LAST["aborts"]
    assert re.fullmatch(aborts, line_of("sums more", 2))


@pytest.mark.parametrize("how", ["sums less", "waits elsewhere"])
def test_ranks_whose_collectives_differ_are_named_with_what_each_does(how: str) -> None:
    """gloo lets them wait for each other; which one is wrong is unknown."""
    line = line_of(how, 2)
    assert line.startswith(f"{HANGS} from any rank: ")
    each = re.findall(r"rank (\d) at step 2, (\w+), in faulty_rank.py:(\d+)", line)
    assert {rank for rank, _, _ in each} == {"0", "1"}, line


# fault in the last rank, world size, and its report
ENDS = [
    ("raises", 2, OF_THE_LAST["raises"]),
    # torchrun itself succeeds
    ("exits 0", 1, OF_THE_LAST["exits 0"]),
    ("mistakes", 2, "params.yaml: b = 3: must be 4"),
    ("exits 3 beside one that stops", 2, OF_THE_LAST["exits 3"]),
    ("leaks a process beside one that leaves", 2, OF_THE_LAST["is killed"]),
    ("exits 0 beside one that sleeps", 2, OF_THE_LAST["exits 0"]),
    ("leaks a thread", 2, f"{HANGS}, hangs after its last step"),
]


@pytest.mark.parametrize(("how", "world_size", "said"), thorough_after(4, ENDS))
def test_torchrun_ends_with_one_line(
    how: str, world_size: int, said: str, tmp_path: Path
) -> None:
    done = run_python(
        *("-m", "faulty_rank", how, str(world_size), str(LIMIT_S)),
        folder=ROOT / "tests/support",
        TMPDIR=str(tmp_path),
        PYTHONPATH=str(ROOT),
    )
    name = "" if how == "mistakes" else NAME.format(world_size - 1)
    assert done.returncode == 2
    assert re.fullmatch(f"error: {name}{said}\n", done.stderr), done.stderr
    assert not [p.pid for p in psutil.process_iter() if marked(p, str(tmp_path))]
    # from torch's compiler package
    assert {f.name.split("_")[0] for f in tmp_path.iterdir()} <= {"torchinductor"}


def marked(process: psutil.Process, folder: str) -> bool:
    try:
        return process.environ().get("TMPDIR") == folder
    except psutil.Error:
        return False


def test_what_explains_the_others_is_reported() -> None:
    """Then the first to exit, unless it left because of another."""
    ranks = {}
    for kind in (GAVE_UP, LOST, TERMINATED, EXITED, KILLED, CRASHED, RAISED):
        ranks[kind] = error = RankError("")
        error.rank, error.kind = kind, kind
        assert root_cause([*ranks.values()]) is error
    for first, cause in {TERMINATED: TERMINATED, LOST: RAISED, GAVE_UP: RAISED}.items():
        assert root_cause([*ranks.values()], {first}) is ranks[cause]
    assert root_cause([*ranks.values()], {LOST, TERMINATED}) is ranks[TERMINATED]
    mistake = UserError("params.yaml")
    assert root_cause([*ranks.values(), mistake], {TERMINATED}) is mistake
    # a rank that was killed after the first exit explains nothing
    assert root_cause([ranks[KILLED], ranks[LOST]], {LOST}) is ranks[LOST]
    assert root_cause([]) is None


LINES = [
    ("Connection closed by peer [127.0.0.1]:4000", LOST),
    ("socketProgress: Connection closed by remote peer host<4000>", LOST),
    ("ncclRemoteError: A call failed possibly due to a network error", LOST),
    # timeouts of storage are the rank's own
    ("storage: request timed out after 5000 ms", RAISED),
    ("The client socket has timed out after 5000ms while trying", GAVE_UP),
    ("wait timeout after 300000ms, keys: /x", GAVE_UP),
    ("Timed out waiting 1000ms for recv operation to complete", GAVE_UP),
]


def test_errors_that_another_rank_caused_are_known_by_their_text() -> None:
    for line, kind in LINES:
        assert kind_of(RuntimeError(line)) == kind
        assert kind_of(OSError(line)) == RAISED
