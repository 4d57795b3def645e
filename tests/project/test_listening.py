"""What listens while a pipeline runs: gloo, on loopback, and nobody else."""

import time
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

import psutil
import pytest
from project import copy_project, start_dvc

from minitrain.distributed.meeting import private_folder

pytestmark = pytest.mark.pipeline


def listening(process: psutil.Process) -> set[str]:
    """Addresses at which ``process`` and all that it started listen over TCP."""
    found = set()
    with suppress(psutil.NoSuchProcess):
        for one in [process, *process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                for connection in one.net_connections("tcp"):
                    if connection.status == psutil.CONN_LISTEN:
                        found.add(connection.laddr.ip)
    return found


def test_nothing_listens_beyond_loopback_in_any_stage(tmp_path: Path) -> None:
    """Torch's TCP store listens on every interface, and who writes into it runs code
    here: a client in another network namespace did.
    """
    copy = copy_project(tmp_path / "project")
    with start_dvc(copy, "repro") as process:
        seen: set[str] = set()
        while process.poll() is None:
            seen |= listening(psutil.Process(process.pid))
            time.sleep(0.02)
        assert process.returncode == 0, process.stdout.read()
    # gloo was seen, so others would have been
    assert seen
    assert [name for name in seen if not ip_address(name).is_loopback] == []


def test_only_its_user_may_enter_the_folder_where_ranks_meet() -> None:
    with private_folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()
