"""A disk that fills up at once: memory with a limit, mounted for one process alone.

The process has a mount namespace of its own, so the disk goes with it, however it ends.
"""

import os
import shutil
import subprocess
from pathlib import Path

from mutated import Server

MEGABYTE = 1 << 20
FILL = "fill"


def private_mounts() -> list[str]:
    """The command that gives what follows it mounts of its own."""
    if os.geteuid() == 0:
        return ["unshare", "--mount"]
    mapped = ["unshare", "--map-root-user", "--mount"]
    if subprocess.run([*mapped, "true"], capture_output=True).returncode == 0:
        return mapped
    return ["sudo", "-n", "--preserve-env", "unshare", "--mount"]


class SmallDisk:
    """``size`` bytes at ``place``, which only ``server`` and its stages see there."""

    def __init__(self, place: Path, size: int) -> None:
        self.place = place
        script = f'mount -t tmpfs -o size={size} none "{place}" && exec "$@"'
        self.server = Server([*private_mounts(), "sh", "-c", script, "sh"])

    @property
    def seen(self) -> Path:
        """The same place, as it looks from here."""
        # prefixes execute what follows, so the number stays that of the server
        root = Path(f"/proc/{self.server.process.pid}/root")
        return root / self.place.relative_to("/")

    def inside(self, folder: str, *command: str) -> list[str]:
        """The command that runs ``command`` in a ``folder`` of the disk."""
        enter = ["nsenter", f"--target={self.server.process.pid}", "--mount"]
        if os.geteuid() != 0:
            enter = ["sudo", "-n", "--preserve-env", *enter]
        return [*enter, "env", f"--chdir={self.place / folder}", *command]

    def fill(self, leave: int) -> None:
        """Leave so many bytes free, in whole pages."""
        free = shutil.disk_usage(self.seen).free
        with open(self.seen / FILL, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, free - leave))

    def empty(self) -> None:
        """Give back what :meth:`fill` took."""
        (self.seen / FILL).unlink(missing_ok=True)

    def stop(self) -> None:
        self.server.stop()
