"""One trial's pipeline: its copy, its processes, and when what happens in it."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from copies import dvc_repro, environment
from processes import MARK, kill_all, wait_until, with_role

# DVC and a stage start within it on a busy machine
START_S = 180.0


@dataclass
class World:
    """``mark`` is in the environment of all that belongs to it."""

    folder: Path
    target: str
    mark: str
    random: Random
    # seconds that the target takes undisturbed
    took_s: float
    more: dict[str, str] = field(default_factory=dict)
    # what puts right what a fault did
    remedies: list[Callable[[], object]] = field(default_factory=list)
    cleanups: list[Callable[[], object]] = field(default_factory=list)
    # what the second run is started by
    before: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    log: Path = Path()
    started: float = 0.0

    def start(self, name: str, *before: str) -> subprocess.Popen[bytes]:
        """``dvc repro`` in a session of its own; what it prints goes to a file."""
        self.log = self.folder.with_name(f"{self.folder.name}-{name}.log")
        self.started = time.monotonic()
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [*before, *dvc_repro(self.target)],
                cwd=self.folder,
                env=environment(self.folder, **{MARK: self.mark}, **self.more),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self.process

    @property
    def ended(self) -> bool:
        """Whether DVC has ended."""
        return self.process is None or self.process.poll() is not None

    @property
    def temporary(self) -> Path:
        """Its folder for temporary files."""
        return Path(environment(self.folder)["TMPDIR"])

    def said(self) -> str:
        """All that the run printed until now."""
        return self.log.read_text(errors="replace")

    def await_role(self, *roles: str) -> list[int]:
        """Ids of processes as soon as there are some; none where DVC ended first."""
        wait_until(lambda: self.ended or with_role(self.mark, *roles), START_S)
        return with_role(self.mark, *roles)

    def checkpoints(self) -> list[Path]:
        """Those that are whole, the newest last."""
        found = self.folder.glob(".minitrain/checkpoints/*/step-*/manifest.json")
        return sorted((f.parent for f in found), key=lambda p: int(p.name[5:]))

    def signal_group(self, number: signal.Signals) -> None:
        """As a terminal does: to DVC and all that shares its process group."""
        if self.process is not None:
            os.killpg(self.process.pid, number)

    def end(self) -> None:
        """Nothing of it is left."""
        kill_all(self.mark)
        if self.process is not None:
            self.process.wait()
        for cleanup in self.cleanups:
            cleanup()
