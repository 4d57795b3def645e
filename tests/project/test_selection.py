"""Which tests run when: `make check`, `make test`, CI."""

import os
import subprocess
import sys

import pytest
from project import ROOT

pytestmark = pytest.mark.slow
QUICK = "tests/core/test_errors.py"
SLOW = ["tests/project/test_stage_errors.py", "tests/comm/test_tree.py"]
PUBLISHED = "tests/project/test_published.py"


def files_collected(*arguments: str, **variables: str) -> set[str]:
    """Of four files those with a test that would run, with a safe path too."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", *arguments]
    without = {name: text for name, text in os.environ.items() if name != "CI"}
    done = subprocess.run(
        [*command, QUICK, *SLOW, PUBLISHED],
        cwd=ROOT,
        env={**without, "PYTHONSAFEPATH": "1", **variables},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return {line.partition(":")[0] for line in done.stdout.splitlines() if line}


def test_results_of_ones_own_are_not_compared_with_what_is_published() -> None:
    assert files_collected() == {QUICK, *SLOW}
    assert files_collected(CI="true") == {QUICK, *SLOW, PUBLISHED}
    assert files_collected("-m", "published") == {PUBLISHED}


def test_check_leaves_out_what_runs_stages_or_many_ranks() -> None:
    assert files_collected("-m", "not slow") == {QUICK}
