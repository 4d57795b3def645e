"""Fixtures for all tests: nothing is left behind, and CI reports skipped tests."""

import getpass
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest
import torch
from forks import ADDRESS, FOR_RANKS, Forked, Server, servers
from held_memory import held_by, segments
from hypothesis import settings
from waiting import GENEROUS_S

from minitrain.harness import launcher

# reasons to skip that are allowed on CI; network namespaces need root and iproute2
MAY_BE_MISSING = ("needs a GPU", "needs root", "needs iproute2")
# folders whose tests start ranks
MANY_RANKS = {"bench", "comm", "frameworks", "harness"}
MANY_RANKS |= {"notebooks", "recording", "sync"}
# concurrent tests create and remove shared memory, too
OF_OTHERS_S = 5.0
CACHE_OF_TORCH = f"torchinductor_{getpass.getuser()}"
SET_BY_OTHERS = {"PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR"}
# bits depend on the number of threads: tests compare with ranks, which have one
torch.set_num_threads(1)
# on a busy machine an example may take long
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
# nohup and background jobs of a shell ignore these, and children would inherit that
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
# would hide modules in the folder of `python -m ...`, have every child process compile
# this project, and change the output of a pytest within a test
for variable in ("PYTHONSAFEPATH", "PYTHONDONTWRITEBYTECODE", "PYTEST_ADDOPTS"):
    os.environ.pop(variable, None)
sys.dont_write_bytecode = False
skipped_on_ci: list[str] = []


@pytest.fixture(scope="session")
def fork_server() -> Iterator[Server]:
    """Forks the ranks of all tests but the launcher's own."""
    server = Server(FOR_RANKS)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def stages_by_fork() -> Iterator[str]:
    """Address of a server that runs stages; tests of a copy use the server of their
    caller.
    """
    if ADDRESS in os.environ:
        yield os.environ[ADDRESS]
        return
    server = Server()
    yield server.address
    server.stop()


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of a few samples for 1 to 4 ranks; none is to be changed."""
    # what it imports few tests need
    from tiny import tiny_shards

    return tiny_shards(tmp_path_factory.mktemp("shards"), 1, 2, 3, 4)


@pytest.fixture
def taken_port() -> Iterator[str]:
    """A port that is in use."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield str(taken.getsockname()[1])


@pytest.fixture(autouse=True)
def ranks_by_fork(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks start in milliseconds; ``real_launch`` marks tests of how they do."""
    if request.node.get_closest_marker("real_launch"):
        return

    def start(environment: Mapping[str, str]) -> Forked:
        # made when first needed
        fork_server: Server = request.getfixturevalue("fork_server")
        return fork_server.fork(environment)

    monkeypatch.setattr(launcher, "_start", start)


@pytest.fixture(autouse=True)
def nothing_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No process, file, shared memory or environment variable outlives a test."""
    # a separate folder, since other programs write to /tmp
    temporary = tmp_path_factory.mktemp("temporary")
    outside = tempfile.tempdir
    tempfile.tempdir = str(temporary)
    os.environ["TMPDIR"] = str(temporary)
    environment = dict(os.environ)
    segments_before = segments()
    yield
    tempfile.tempdir = outside
    children = psutil.Process().children(recursive=True)
    left = [child for child in children if child.pid not in servers]
    for child in left:
        child.kill()
    # else later tests would find them, too
    psutil.wait_procs(left, timeout=GENEROUS_S)
    differing = environment.items() ^ os.environ.items()
    changed = {name for name, _ in differing} - SET_BY_OTHERS
    os.environ.clear()
    os.environ.update(environment)
    assert not left, f"processes left behind: {left}"
    assert not changed, f"environment changed: {changed}"
    # torch makes its compiler's cache as soon as a model is wrapped
    files = {file.name for file in temporary.iterdir()} - {CACHE_OF_TORCH}
    assert not files, f"temporary files left behind: {files}"
    new = segments() - segments_before
    deadline = time.monotonic() + OF_OTHERS_S
    while new and time.monotonic() < deadline:
        # all processes of this test have ended
        new -= held_by(lambda pid: pid != os.getpid())
        time.sleep(0.1)
        new &= segments()
    assert not new, f"shared memory left behind: {new}"


# first, since pytest's hook selects by these marks
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Mark tests that run stages or many ranks as slow, unless they are quick. Tests of
    published results run on CI and by ``-m published`` only, thorough ones with
    MINITRAIN_ALL.
    """
    for item in items:
        runs_stages = "stages_by_fork" in getattr(item, "fixturenames", ())
        runs_dvc = item.get_closest_marker("pipeline") is not None
        are_ranks = item.path.parent.name in MANY_RANKS
        is_quick = item.get_closest_marker("quick") is not None
        if (runs_stages or runs_dvc or are_ranks) and not is_quick:
            item.add_marker(pytest.mark.slow)
    is_asked = "published" in config.option.markexpr
    left_out = [] if is_asked or os.environ.get("CI") else ["published"]
    left_out += [] if os.environ.get("MINITRAIN_ALL") else ["thorough"]
    without = [i for i in items if any(map(i.get_closest_marker, left_out))]
    items[:] = [item for item in items if item not in without]
    config.hook.pytest_deselected(items=without)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember skips that no missing hardware explains."""
    reason = str(report.longrepr)
    if report.skipped and not any(need in reason for need in MAY_BE_MISSING):
        skipped_on_ci.append(f"{report.nodeid}: {report.longrepr}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A test that CI could run must not be skipped there."""
    if os.environ.get("CI") and skipped_on_ci:
        print("\nskipped on CI:", *skipped_on_ci, sep="\n  ")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
