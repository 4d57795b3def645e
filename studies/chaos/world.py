"""State of a trial's pipeline: its copy, processes and timing."""

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

# limit on the start of DVC and a stage on a busy machine
START_S = 180.0


@dataclass
class World:
    """Pipeline of one trial; ``mark`` is in the environment of all its processes."""

    folder: Path
    target: str
    mark: str
    random: Random
    # seconds that the target takes without a fault
    took_s: float
    more: dict[str, str] = field(default_factory=dict)
    # actions that undo a fault
    remedies: list[Callable[[], object]] = field(default_factory=list)
    cleanups: list[Callable[[], object]] = field(default_factory=list)
    # prefix of the command of the second run
    before: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    log: Path = Path()
    started: float = 0.0

    def start(self, name: str, *before: str) -> subprocess.Popen[bytes]:
        """Start ``dvc repro`` in a new session; its output goes to a file."""
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
        """True if DVC has exited."""
        return self.process is None or self.process.poll() is not None

    @property
    def temporary(self) -> Path:
        """Folder for temporary files."""
        return Path(environment(self.folder)["TMPDIR"])

    def said(self) -> str:
        """Return the output of the run so far."""
        return self.log.read_text(errors="replace")

    def await_role(self, *roles: str) -> list[int]:
        """Wait for processes with such a role, or DVC's exit; return their pids."""
        wait_until(lambda: self.ended or with_role(self.mark, *roles), START_S)
        return with_role(self.mark, *roles)

    def checkpoints(self) -> list[Path]:
        """Return complete checkpoints, newest last."""
        found = self.folder.glob(".minitrain/checkpoints/*/step-*/manifest.json")
        return sorted((f.parent for f in found), key=lambda p: int(p.name[5:]))

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to DVC's process group, as a terminal does."""
        if self.process is not None:
            os.killpg(self.process.pid, number)

    def end(self) -> None:
        """Kill all processes and run the cleanups."""
        kill_all(self.mark)
        if self.process is not None:
            self.process.wait()
        for cleanup in self.cleanups:
            cleanup()
