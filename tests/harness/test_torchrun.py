import os
import re
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from one_line import refusal
from ports import free_port
from project import run_python
from waiting import GENEROUS_S, wait_for

from minitrain.comm.store import ENVIRONMENT
from minitrain.core.errors import RankError
from minitrain.harness.failures import read_report, write_report
from minitrain.harness.launcher import run_as_ranks

TORCHRUN = """
from minitrain.core.errors import run_stage
from minitrain.harness.launcher import run_as_ranks

def body(launcher):
    from minitrain.comm.groups import barrier, distributed
    with distributed() as (rank, world_size):
        barrier()
        if rank == 0:
            print(launcher, world_size, flush=True)

def main():
    run_as_ranks("ranks", body, 2, threads_per_process=1)

if __name__ == "__main__":
    run_stage(main)
"""


def test_what_another_torchrun_left_is_one_line(monkeypatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "another")
    for name, value in zip(ENVIRONMENT, ["3", "4", "127.0.0.1", "29500"], strict=True):
        monkeypatch.setenv(name, value)
    ran: list[str] = []
    line = refusal(run_as_ranks, "ranks", ran.append, 2, threads_per_process=1)
    assert not ran
    assert line == (
        "environment: WORLD_SIZE = 4 does not match a run of 2; if torchrun did not "
        "start this process, unset TORCHELASTIC_RUN_ID"
    )


@pytest.mark.parametrize("left", ["RANK", "TORCHELASTIC_RUN_ID"])
def test_module_starts_itself(left: str, tmp_path: Path, monkeypatch) -> None:
    """Rank variables are ignored unless all are set, with torchrun's run id."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv(left, "3")
    (tmp_path / "ranks.py").write_text(TORCHRUN)
    done = run_python("-m", "ranks", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "torchrun 2\n"), done.stderr


def test_rank_that_is_ended_while_it_reports_has_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "rename", lambda *_: None)
    write_report(tmp_path, 1, RankError("a bug"))
    assert read_report(tmp_path, 1) is None


WAIT = """
import os, time
if "RANK" in os.environ:
    open(f"here-{os.getpid()}", "w").close()
    time.sleep(60)
"""


@pytest.mark.parametrize("busy", ["imports", "trains"])
def test_ctrl_c_is_one_line_at_once(busy: str, tmp_path: Path) -> None:
    in_body = textwrap.indent(WAIT, 8 * " ")
    script = {
        "imports": WAIT + TORCHRUN,
        "trains": TORCHRUN.replace("        barrier()\n", in_body),
    }
    (tmp_path / "ranks.py").write_text(script[busy])
    process = subprocess.Popen(
        [sys.executable, "-m", "ranks"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_for(lambda: list(tmp_path.glob("here-*")), count=2)
    # as a terminal does, to the whole process group
    os.killpg(process.pid, signal.SIGINT)
    # torchrun waits half a minute for a rank that gets SIGINT itself
    _, stderr = process.communicate(timeout=GENEROUS_S)
    assert (process.returncode, stderr) == (130, "error: interrupted\n")


# one torchrun on each of two hosts, both on loopback
TWO_HOSTS = """
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


@pytest.mark.parametrize(("late", "code"), [(0, 7), (1, 0)])
def test_rank_that_ends_after_those_of_the_other_host_is_waited_for(
    late: int, code: int, tmp_path: Path
) -> None:
    (tmp_path / "ranks.py").write_text(TWO_HOSTS)
    told = [str(value) for value in (free_port(), late, code)]

    def be(number: int) -> tuple[int, str]:
        done = run_python("-m", "ranks", str(number), *told, folder=tmp_path)
        return done.returncode, done.stderr.splitlines()[-1]

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(be, range(2))
    assert first[0] == second[0] == (2 if code else 0), (first, second)
    if code:
        assert first == second
        failed = r"error: rank 0 \(process \d+ on \S+\): exited with code 7 "
        assert re.fullmatch(failed + "after its last step", first[1])
