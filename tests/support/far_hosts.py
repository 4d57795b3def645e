"""Training on several hosts, each a network namespace with a folder of its own."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from network_namespaces import Host, why_not
from project import environment

WHY_NOT = why_not()
needs_hosts = pytest.mark.skipif(WHY_NOT is not None, reason=f"{WHY_NOT}")
PORT = 29400


class Ended(NamedTuple):
    """What became of one host's command."""

    returncode: int
    said: str

    @property
    def lines(self) -> list[str]:
        """Its errors."""
        return [line for line in self.said.splitlines() if "error" in line.lower()]


def start(
    host: Host, folder: Path, first: Host, *options: str, world_size: int = 2
) -> subprocess.Popen[str]:
    """Start ``launch/host`` on ``host``, in the project in ``folder``, for two hosts
    that meet at the ``first``; later ``options`` overrule.
    """
    meet = ["--nnodes", "2", "--rdzv-endpoint", f"{first.address}:{PORT}"]
    # what kill -9 leaves here the next run of this host would remove
    temporary = folder.with_name(f"{folder.name}-temporary")
    temporary.mkdir(exist_ok=True)
    command = ["launch/host", "--world-size", str(world_size), *meet, *options]
    return subprocess.Popen(
        host.command(command),
        cwd=folder,
        env=environment(TMPDIR=str(temporary)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait(processes: Sequence[subprocess.Popen[str]]) -> list[Ended]:
    """What became of each."""
    said = [process.communicate(timeout=150)[0] for process in processes]
    return [
        Ended(process.returncode, one)
        for process, one in zip(processes, said, strict=True)
    ]
