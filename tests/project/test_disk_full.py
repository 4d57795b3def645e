"""A full disk in every stage that writes: one line, no partial file, then a retry.

The disk is memory with a limit, mounted for one process alone, in a mount namespace of
its own: so it goes with that process, however it ends.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from forks import Outcome, Server, of_size, run_stages
from thorough import thorough_after
from waiting import wait_for

pytestmark = pytest.mark.slow

PARTS = (["corpus"], ["shard"], *of_size(2), ["equivalence"], ["timing"], ["report"])
WRITING = {stage[0]: stage for stage in PARTS}


def private_mounts() -> list[str]:
    """Return the command prefix that creates a mount namespace."""
    if os.geteuid() == 0:
        return ["unshare", "--mount"]
    mapped = ["unshare", "--map-root-user", "--mount"]
    if subprocess.run([*mapped, "true"], capture_output=True).returncode == 0:
        return mapped
    return ["sudo", "-n", "--preserve-env", "unshare", "--mount"]


class SmallDisk:
    """64 MiB at ``place``, which only ``server`` and its stages see there."""

    def __init__(self, place: Path) -> None:
        self.place = place
        script = f'mount -t tmpfs -o size=64m none "{place}" && exec "$@"'
        self.server = Server(prefix=[*private_mounts(), "sh", "-c", script, "sh"])

    @property
    def seen(self) -> Path:
        """The same place, as it looks from here."""
        # the prefixes exec, so the process id is the server's
        root = Path(f"/proc/{self.server.process.pid}/root")
        return root / self.place.relative_to("/")

    def fill(self) -> None:
        free = shutil.disk_usage(self.seen).free
        with open(self.seen / "fill", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, free))


@pytest.fixture(scope="module")
def disk(
    made_run: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SmallDisk]:
    """A small disk with a copy of the project whose pipeline has run."""
    place = tmp_path_factory.mktemp("disk")
    disk = SmallDisk(place)
    try:
        wait_for(lambda: [disk.seen] * os.path.ismount(disk.seen), 1)
        shutil.copytree(made_run, disk.seen / "project", symlinks=True)
        outcome = run(disk, ["baseline"], ["report"])
        assert outcome.code == 0, outcome.output
        yield disk
    finally:
        disk.server.stop()
    assert list(place.iterdir()) == [], "the disk was mounted for all processes"


def run(disk: SmallDisk, *stages: list[str]) -> Outcome:
    return run_stages(disk.server.address, disk.place / "project", stages)


def outputs(disk: SmallDisk) -> dict[str, bytes]:
    folder = disk.seen / "project"
    inside = [*(folder / "data").rglob("*"), *(folder / "metrics").rglob("*")]
    files = [path for path in inside if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("stage", thorough_after(4, WRITING))
def test_full_disk_is_one_line_and_then_it_goes_on(disk: SmallDisk, stage: str) -> None:
    disk.fill()
    before = outputs(disk)
    try:
        outcome = run(disk, WRITING[stage])
        after = outputs(disk)
    finally:
        (disk.seen / "fill").unlink()
    assert outcome.code == 2, outcome.output
    assert "Traceback" not in outcome.output
    # the forks that stand for torchrun add a line of their own
    lines = [x for x in outcome.output.splitlines() if x.startswith("error: ")]
    own = [line for line in lines if line != "error: a rank failed"]
    assert all("no space left on the disk" in x for x in own), outcome.output
    assert len(own) == 1 or stage == "train", outcome.output
    path = own[0].removeprefix("error: ").partition(":")[0]
    assert path.partition("/")[0] in ("data", "metrics", "README.md"), path
    assert after == before
    again = run(disk, WRITING[stage])
    assert again.code == 0, again.output
