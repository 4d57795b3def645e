"""What holds for every test: nothing leaks, and on CI nothing is skipped unseen."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from minitrain.torchrun import LOGS_PREFIX

NEEDS_GPU = "needs a GPU"
SET_BY_OTHERS = {"PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR"}
# bits depend on the number of threads: tests compare with ranks, which have one
torch.set_num_threads(1)
skipped_on_ci: list[str] = []


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """No process, log folder, shared memory or environment variable outlives a test."""
    environment = dict(os.environ)
    before = _traces()
    yield
    left = psutil.Process().children(recursive=True)
    for child in left:
        child.kill()
    names = (environment.keys() | os.environ.keys()) - SET_BY_OTHERS
    changed = {n for n in names if environment.get(n) != os.environ.get(n)}
    os.environ.clear()
    os.environ.update(environment)
    assert not left, f"processes left behind: {left}"
    assert not changed, f"environment changed: {changed}"
    assert _traces() == before, "temporary files or shared memory left behind"


def _traces() -> set[Path]:
    shared_memory = Path("/dev/shm")
    traces = set(Path(tempfile.gettempdir()).glob(f"{LOGS_PREFIX}*"))
    return traces | (set(shared_memory.iterdir()) if shared_memory.is_dir() else set())


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember skips that no missing hardware explains."""
    if report.skipped and NEEDS_GPU not in str(report.longrepr):
        skipped_on_ci.append(f"{report.nodeid}: {report.longrepr}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A test that CI could run must not be skipped there."""
    if os.environ.get("CI") and skipped_on_ci:
        print("\nskipped on CI:", *skipped_on_ci, sep="\n  ")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
