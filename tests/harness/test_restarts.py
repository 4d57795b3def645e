from collections.abc import Sequence

import pytest

from minitrain.core.errors import RankError, UserError
from minitrain.harness.launcher import with_restarts

BUG = "RuntimeError: bug at 0x7f00ab, port {}"


def lost(what: str, step: int | None) -> RankError:
    error = RankError(f"rank 1: {what}")
    error.what, error.step = what, step
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
    failures = [lost("killed\nby SIGKILL", 12), lost("hung", 12)]
    assert attempts(failures, 2) == (3, None)
    assert capsys.readouterr().err == (
        "rank 1: killed by SIGKILL; restarting (1 of 2)\n"
        "rank 1: hung; restarting (2 of 2)\n"
    )


@pytest.mark.parametrize("most", [0, 1, 5])
def test_the_last_failure_is_raised(most: int) -> None:
    failures = [lost("killed", step) for step in range(most + 1)]
    assert attempts(failures, most) == (most + 1, failures[-1])


@pytest.mark.parametrize("step", [3, None])
def test_same_failure_at_the_same_step_twice_in_a_row_is_the_last(
    step: int | None,
) -> None:
    failures = [lost(BUG.format(12345), step), lost(BUG.format(54321), step)]
    assert attempts(failures, 9) == (2, failures[-1])


@pytest.mark.parametrize(
    ("first", "what", "step"),
    [
        ("killed", "killed", 4),
        ("killed", "hung", 3),
        ("ValueError: 8", "ValueError: 9", 3),
        # ranks that a scheduler kills at the same step are no error of the code
        ("killed by SIGKILL", "killed by SIGKILL", 3),
        ("killed by SIGTERM", "killed by SIGTERM", 3),
        ("stopped", "stopped", 3),
    ],
)
def test_what_differs_or_comes_from_outside_is_no_repetition(
    first: str, what: str, step: int
) -> None:
    failures = [lost(first, 3), lost(what, step), lost(first, 3)]
    assert attempts(failures, 9) == (4, None)


@pytest.mark.parametrize(
    "error", [UserError("params.yaml"), KeyboardInterrupt(), OSError(28, "full")]
)
def test_what_is_no_lost_rank_ends_at_once(error: BaseException) -> None:
    assert attempts([error], 3) == (1, error)
