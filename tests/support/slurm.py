"""Slurm with two virtual nodes on this host, in a separate folder.

The daemons run under one process, which adopts orphans and ends all of them when the
test that started it (``two_nodes``) finishes or dies.
"""

import ctypes
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from ports import free_port
from waiting import GENEROUS_S, wait_for

START_S = 120.0
ASK_S = 120.0
# ranks remove their folder on SIGTERM
GRACE_S = 5.0
PR_SET_CHILD_SUBREAPER = 36
NODES = ("n1", "n2")
# daemons lie where not every user looks
PATH = f"{os.environ['PATH']}{os.pathsep}/usr/sbin{os.pathsep}/sbin"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL"}
# no files of the system's Slurm, no cgroups, no accounting; nodes have two CPUs on any
# host, start jobs within a second and listen on loopback
CONFIG = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,batch_sched_delay=0
SlurmdParameters=config_overrides
MpiDefault=none
KillWait=15
"""
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2\n"
PARTITION = "PartitionName=all Nodes=ALL Default=YES MaxTime=60\n"


def missing() -> list[str]:
    return [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]


def environment_of(folder: Path) -> dict[str, str]:
    """This process's, with which commands find the Slurm in ``folder`` and no other."""
    ours = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
    named = {"PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")}
    return {**ours, **named, "TMPDIR": str(folder / "tmp")}


@dataclass(frozen=True)
class Slurm:
    """Running Slurm in ``folder`` under the process ``keeper``; ``folder``/tmp is the
    TMPDIR of jobs.
    """

    folder: Path
    keeper: int

    def strays(self) -> list[str]:
        """Return processes other than the daemons: none once jobs have ended."""
        known = ("munged", "slurmctld", "slurmd", "slurmscriptd", "slurmstepd")
        found = []
        for one in psutil.Process(self.keeper).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                words = one.cmdline()
                # one that has none is dead, and waits for its burial
                if words and not any(name in words[0] for name in known):
                    found.append(" ".join(words))
        return found

    def ask(self, *command: str, cwd: Path | None = None) -> str:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=environment_of(self.folder),
            capture_output=True,
            text=True,
            timeout=ASK_S,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def submit(self, project: Path, *words: str) -> "Job":
        number = self.ask("sbatch", "--parsable", *words, cwd=project)
        return Job(self, number, project / f"slurm-{number}.out")


@dataclass(frozen=True)
class Job:
    """One that was submitted, and the file that it prints to."""

    slurm: Slurm
    number: str
    output: Path

    @property
    def said(self) -> str:
        return self.output.read_text() if self.output.exists() else ""

    def show(self, key: str) -> str:
        """Return the value of ``key`` in ``scontrol show job``."""
        shown = self.slurm.ask("scontrol", "show", "job", "--oneliner", self.number)
        (value,) = re.findall(rf"(?:^| ){key}=(\S*)", shown)
        return value

    def wait(self) -> None:
        """Wait until it has ended well."""
        state = self.wait_for(ENDED, 240)
        assert (state, self.show("ExitCode")) == ("COMPLETED", "0:0"), self.said

    def wait_for(self, states: set[str], within_s: float = 60) -> str:
        deadline = time.monotonic() + within_s
        while (state := self.show("JobState")) not in states:
            assert time.monotonic() < deadline, f"{state}:\n{self.said}"
            time.sleep(0.2)
        return state

    def end_of_time(self) -> None:
        """Signal that its time is nearly up, and start it within seconds instead of two
        minutes after its requeue.
        """
        self.slurm.ask("scancel", "--signal=USR1", "--batch", self.number)
        self.wait_for({"PENDING"})
        # nodes refuse what was signed in the second in which the job ended there
        when = "StartTime=now+2"
        self.slurm.ask("scontrol", "update", f"JobId={self.number}", when)


@contextmanager
def two_nodes(folder: Path) -> Iterator[Slurm]:
    """A Slurm in ``folder``, which is empty and has a short path; nothing of it is left
    afterwards but files.
    """
    (folder / "tmp").mkdir()
    with open(folder / "log", "w") as log:
        # Ctrl-C is for the test
        keeper = subprocess.Popen(
            [sys.executable, __file__, str(folder)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait_until_idle(folder)
        yield Slurm(folder, keeper.pid)
    finally:
        # the end of its input is the end of all that it keeps
        keeper.stdin.close()
        keeper.wait(60)
    assert keeper.returncode == 0, (folder / "log").read_text()


def _wait_until_idle(folder: Path) -> None:
    command = ["sinfo", "--noheader", "--Node", "--format=%T"]
    given = {"env": environment_of(folder), "capture_output": True, "text": True}
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        with suppress(subprocess.TimeoutExpired):
            done = subprocess.run(command, **given, timeout=GENEROUS_S)
            if done.stdout.split() == ["idle"] * len(NODES):
                return
        time.sleep(0.1)
    raise AssertionError(f"no Slurm:\n{(folder / 'log').read_text()}")


def write_config(folder: Path) -> None:
    """Write slurm.conf for two nodes, their folders and the munge key."""
    host = socket.gethostname().partition(".")[0]
    ports: set[int] = set()
    while len(ports) < 1 + len(NODES):
        ports.add(free_port())
    first, *others = ports
    config = CONFIG.format(host=host, port=first, user=os.geteuid(), folder=folder)
    for name, port in zip(NODES, others, strict=True):
        config += NODE.format(name=name, host=host, port=port)
        (folder / name).mkdir()
    (folder / "state").mkdir()
    (folder / "slurm.conf").write_text(config + PARTITION)
    said = subprocess.run(
        ["slurmd", "-V"], env={"PATH": PATH}, capture_output=True, text=True
    ).stdout
    # from 23.02 on needed without cgroups; unknown to earlier versions
    if [int(n) for n in re.findall(r"\d+", said)] >= [23, 2]:
        (folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(secrets.token_bytes(32))


def daemons(folder: Path) -> list[list[str]]:
    """Return the commands of the daemons, in order of start."""
    kinds = ("socket", "pid-file", "log-file", "key-file", "seed-file")
    files = [f"--{o}={folder}/munge.{o.partition('-')[0]}" for o in kinds]
    return [
        # --force: it rejects folders that other users cannot enter
        ["munged", "--foreground", "--force", *files],
        ["slurmctld", "-D", "-i"],
        *(["slurmd", "-D", "-N", name] for name in NODES),
    ]


def keep(folder: Path) -> None:
    """Run the daemons until stdin ends, then end all that they started."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    write_config(folder)
    try:
        for command in daemons(folder):
            environment = environment_of(folder)
            subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
            if command[0] == "munged":
                wait_for(lambda: [*folder.glob("munge.socket")], 1)
        sys.stdin.read()
    finally:
        end_all()


def end_all() -> None:
    """Send SIGTERM to all descendants of this process, then SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        # a step that is killed leaves children, which come here
        while left := psutil.Process().children(recursive=True):
            for one in left:
                with suppress(psutil.NoSuchProcess):
                    one.send_signal(number)
            _, alive = psutil.wait_procs(left, GRACE_S)
            if number == signal.SIGTERM and alive:
                break


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
