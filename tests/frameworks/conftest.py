"""A fixture that runs loops of users by forks."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from example_loops import IMPORTED, Run, python_of, script_of, variables_of
from forks import Server, run_script
from project import environment

# what torch imports as soon as there is an optimizer is slow, too
MODULES = ("torch._dynamo", "minitrain")


@pytest.fixture(scope="module")
def by_fork() -> Iterator[Run]:
    """``by_fork(name, world_size, folder, *arguments, **variables)`` records one run of
    a loop, or of a ``script`` with its imports, into ``folder``; returns its output.
    """
    started: dict[str, Server] = {}

    def run(
        name: str,
        world_size: int,
        folder: Path,
        *arguments: str,
        script: Path | None = None,
        **variables: str,
    ) -> str:
        if name not in started:
            modules = (*MODULES, *IMPORTED[name])
            started[name] = Server(modules, python=python_of(name))
        command = [script or script_of(name), folder, *arguments]
        with TemporaryDirectory() as temporary:
            own = environment(**variables_of(temporary), **variables)
            address = started[name].address
            done = run_script(address, command, world_size, folder.parent, own)
        assert done.code == 0, done.output[-4000:]
        return done.output

    yield run
    for server in started.values():
        server.stop()
