from collections.abc import Sequence

import pytest

from minitrain.core.errors import RankError, UserError
from minitrain.harness.failures import GAVE_UP, KILLED, RAISED
from minitrain.harness.launcher import with_restarts


def lost(what: str, kind: int = KILLED) -> RankError:
    error = RankError(f"rank 1: {what}")
    error.kind = kind
    return error


def attempts(
    failures: Sequence[BaseException], most: int
) -> tuple[int, BaseException | None]:
    """Return the number of attempts that fail in turn with these errors before success,
    and the error raised in the end.
    """
    left, calls = list(failures), list[int]()

    def attempt() -> None:
        calls.append(len(calls))
        if left:
            raise left.pop(0)

    try:
        with_restarts(attempt, most)
    except BaseException as error:
        return len(calls), error
    return len(calls), None


def test_one_line_for_each_restart(capsys: pytest.CaptureFixture[str]) -> None:
    failures = [lost("killed\nby SIGKILL"), lost("hangs", GAVE_UP)]
    assert attempts(failures, 2) == (3, None)
    assert capsys.readouterr().err == (
        "rank 1: killed by SIGKILL; restarting (1 of 2)\n"
        "rank 1: hangs; restarting (2 of 2)\n"
    )


def test_the_last_failure_is_raised() -> None:
    for most in (0, 1, 5):
        failures = [lost("killed") for _ in range(most + 1)]
        assert attempts(failures, most) == (most + 1, failures[-1])


def test_what_is_no_lost_rank_ends_at_once() -> None:
    bug, full = lost("ValueError: a bug", RAISED), OSError(28, "full")
    for error in (bug, full, UserError("params.yaml"), KeyboardInterrupt()):
        assert attempts([error], 3) == (1, error)
