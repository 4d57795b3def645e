"""The training stage on two hosts: the bits of one host, or one line on both."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from forks import PREPARE, TRAIN_2, of_size, run_stages
from network_namespaces import CABLE, Host, Networks, inside, why_not
from project import copy_project, environment, set_params
from thorough import thorough_after
from waiting import GENEROUS_S, wait_for

from minitrain.comm.heartbeat import find_place
from minitrain.core.files import read_json

WHY_NOT = why_not()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(WHY_NOT is not None, reason=f"{WHY_NOT}"),
]


# exit code and output of one host's command
Ended = tuple[int, str]


class Two(NamedTuple):
    near: Path
    far: Path


def start(
    host: Host, folder: Path, first: str, world_size: int = 2
) -> subprocess.Popen[str]:
    """Start ``launch/host`` as one of two hosts that meet at the address ``first``."""
    # the next run of a host removes what kill -9 left here
    temporary = folder.with_name(f"{folder.name}-temporary")
    temporary.mkdir(exist_ok=True)
    meet = ["--nnodes", "2", "--rdzv-endpoint", f"{first}:29400"]
    return subprocess.Popen(
        host.command(["launch/host", "--world-size", str(world_size), *meet]),
        cwd=folder,
        env=environment(TMPDIR=str(temporary)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def start_on(
    networks: Networks, two: Two, world_size: int = 2
) -> list[subprocess.Popen[str]]:
    first = networks.hosts[0].address
    pairs = zip(networks.hosts, two, strict=True)
    return [start(host, folder, first, world_size) for host, folder in pairs]


def wait(processes: Sequence[subprocess.Popen[str]]) -> list[Ended]:
    said = [process.communicate(timeout=150)[0] for process in processes]
    return [(one.returncode, text) for one, text in zip(processes, said, strict=True)]


@pytest.fixture(scope="module")
def project(stages_by_fork: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    changes = {"gloo.world_sizes": [1, 2, 4], "train.num_steps": 40}
    copy = copy_project(tmp_path_factory.mktemp("hosts") / "project", changes)
    done = run_stages(stages_by_fork, copy, [["check"], *PREPARE])
    assert done.code == 0, done.output
    return copy


@pytest.fixture
def two(project: Path, tmp_path: Path) -> Two:
    folders = Two(tmp_path / "near", tmp_path / "far")
    for folder in folders:
        # what other tests made here
        shutil.copytree(project, folder, ignore=shutil.ignore_patterns("runs"))
    return folders


def one_line(ended: Ended, pattern: str) -> str:
    code, said = ended
    lines = [line for line in said.splitlines() if "error" in line.lower()]
    assert (code, len(lines)) == (2, 1), said
    assert re.search(pattern, lines[0]), said
    return lines[0]


def outputs(folder: Path, world_size: int) -> dict[str, bytes]:
    run = folder / f"data/runs/gloo-{world_size}"
    names = [f"states/state-rank-{rank}.pt" for rank in range(world_size)]
    names += ["losses.csv", "hashes.jsonl", "machine.json"]
    return {name: (run / name).read_bytes() for name in names}


@pytest.mark.parametrize(
    ("sync", "world_size"), thorough_after(1, [("ddp", 4), ("invariant", 4)])
)
def test_two_hosts_have_the_bits_of_one(
    stages_by_fork: str, project: Path, two: Two, sync: str, world_size: int
) -> None:
    for folder in (project, *two):
        set_params(folder, {"train.sync": sync})
    alone = run_stages(stages_by_fork, project, of_size(world_size)[:1])
    assert alone.code == 0, alone.output
    seen: list[set[str]] = [set(), set()]
    with Networks(2) as networks:
        made = networks.hosts
        addresses = [{host.address} for host in made]
        running = start_on(networks, two, world_size)
        while any(process.poll() is None for process in running):
            for addresses_of, host in zip(seen, made, strict=True):
                addresses_of |= listening_on(host)
            # ranks listen for seconds, and looking takes their time
            time.sleep(0.1)
        ended = wait(running)
    assert [code for code, _ in ended] == [0, 0], ended
    # on the chosen interface alone
    assert seen == addresses
    assert outputs(two.near, world_size) == outputs(project, world_size)
    provenance = f"data/runs/gloo-{world_size}/provenance.json"
    near, one = read_json(two.near / provenance), read_json(project / provenance)
    assert (near["num_hosts"], one["num_hosts"]) == (2, 1)
    # here both are this machine
    assert near["machines"] == [one["machine"]] * 2
    # all results lie on the first host
    assert not (two.far / "data/runs").exists()


def test_unlike_hosts_are_refused(two: Two) -> None:
    """A parameter here; for code and data see tests/train/test_identity.py."""
    set_params(two.far, {"train.learning_rate": 0.5})
    with Networks(2) as networks:
        ended = wait(start_on(networks, two))
    pattern = r"train.learning_rate = 0\.5, but 0\.0003 on host"
    near, _ = (one_line(one, pattern) for one in ended)
    assert "host 1 (" in near or "(rank 1)" in near
    assert not (two.near / "data/runs").exists()


def test_host_without_a_route_to_the_first_says_so(two: Two) -> None:
    """For a first host that does not answer see tests/harness."""
    with Networks(2) as networks:
        (ended,) = wait([start(networks.hosts[1], two.far, "192.0.2.1")])
    one_line(ended, re.escape("no route to 192.0.2.1"))


def ranks_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.Error):
            if "TORCHELASTIC_RUN_ID" in child.environ():
                found.append(child)
    return found


def listening_on(host: Host) -> set[str]:
    command = host.command(["ss", "--listening", "--tcp", "--numeric", "--no-header"])
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    addresses = [line.split()[3] for line in listed.stdout.splitlines()]
    return {address.rpartition(":")[0] for address in addresses}


@pytest.mark.thorough
def test_rank_killed_on_one_host_is_named_on_both_and_starts_again(
    stages_by_fork: str, project: Path, two: Two
) -> None:
    for folder in (project, *two):
        set_params(folder, {"train.num_steps": 400})
    alone = run_stages(stages_by_fork, project, [TRAIN_2])
    assert alone.code == 0, alone.output
    with Networks(2) as networks:
        running = start_on(networks, two)
        (rank,) = wait_for(lambda: ranks_of(running[1]), 1)
        time.sleep(3)
        os.kill(rank.pid, signal.SIGKILL)
        ended = wait(running)
    for code, said in ended:
        assert code == 0, said
        assert f"rank 1 (process {rank.pid} on " in said
        assert "killed by SIGKILL" in said
        assert "restarting (1 of 3)" in said
    assert outputs(two.near, 2) == outputs(project, 2)


def in_steps(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return ranks that train: starting may take longer than a step."""
    found = []
    for rank in ranks_of(process):
        folder = Path(rank.environ()["MINITRAIN_STORE"]).parent
        # one rank on each host
        places = [find_place(file) for file in folder.glob("place-*")]
        if any(one and one.look().phase not in ("start", "setup") for one in places):
            found.append(rank)
    return found


@pytest.mark.parametrize(
    ("how", "lost"),
    thorough_after(2, [("killed", 0), ("cut", 1), ("killed", 1), ("cut", 0)]),
)
def test_host_that_is_lost_is_named(two: Two, how: str, lost: int) -> None:
    """When its cable is cut, the other gets no signal: no connection is closed."""
    for folder in two:
        set_params(folder, {"train.num_steps": 40000, "launch.timeout_s": 10})
    with Networks(2) as networks:
        made, running = networks.hosts, start_on(networks, two)
        ranks = [wait_for(lambda p=process: in_steps(p), 1) for process in running]
        if how == "killed":
            tree = psutil.Process(running[lost].pid)
            for one in [tree, *tree.children(recursive=True)]:
                one.kill()
        else:
            with inside(made[lost].path):
                subprocess.run(["ip", "link", "set", CABLE, "down"], check=True)
        began = time.monotonic()
        ended = wait(running)
    # the limit, until the store is given up, and for the last word
    assert time.monotonic() - began < GENEROUS_S
    for number in (1 - lost,) if how == "killed" else (0, 1):
        one_line(ended[number], rf"no answer from host {1 - number} \(")
        assert not [rank for rank in ranks[number] if rank.is_running()]
