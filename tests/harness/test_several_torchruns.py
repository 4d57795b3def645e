"""One torchrun on each of two hosts (both on loopback), and how they exit."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ports import free_port
from project import run_python
from thorough import thorough_after

SCRIPT = """
import atexit, os, sys, time
from minitrain.core.errors import run_stage
from minitrain.harness import host_rendezvous as rendezvous
from minitrain.harness.hosts import Hosts, Interface
from minitrain.comm.store import interfaces
from minitrain.harness.launcher import run_as_ranks

number, port, late, code = map(int, sys.argv[1:])
rendezvous.REPORTS_S = 1.0

def body(launcher):
    from minitrain.comm.groups import barrier, distributed
    with distributed() as (rank, _):
        barrier()
    if rank == late:
        # those of the other host have ended, and longer ago than it waits for a word
        time.sleep(4)
        if code:
            # after what the run does
            atexit.register(os._exit, code)

def main():
    loopback = Interface(interfaces(), "127.0.0.1")
    hosts = Hosts(2, "127.0.0.1", port, loopback, number)
    run_as_ranks("ranks", body, 2, threads_per_process=1, hosts=hosts)

if __name__ == "__main__":
    run_stage(main)
"""


def run_two(folder: Path, late: int, code: int) -> list[tuple[int, str]]:
    """Return exit code and last line of each host; rank ``late`` (one per host) exits
    last, with ``code``.
    """
    (folder / "ranks.py").write_text(SCRIPT)
    told = [str(value) for value in (free_port(), late, code)]

    def be(number: int) -> tuple[int, str]:
        # a busy machine needs half a minute to start
        done = run_python("-m", "ranks", str(number), *told, folder=folder)
        return done.returncode, done.stderr.splitlines()[-1]

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(be, range(2)))


@pytest.mark.parametrize(("late", "code"), thorough_after(2, [(0, 7), (1, 0), (1, 7)]))
def test_rank_that_ends_after_those_of_the_other_host_is_waited_for(
    late: int, code: int, tmp_path: Path
) -> None:
    """Before, the other host waited for 300 s, and then named this one as lost."""
    first, second = run_two(tmp_path, late, code)
    assert first[0] == second[0] == (2 if code else 0), (first, second)
    failed = rf"error: rank {late} \(process \d+ on \S+\): exited with code 7 "
    if code:
        assert first == second
        assert re.fullmatch(failed + "after its last step", first[1])
