"""A private site cache for DVC, where no other user of the machine can put a file.

    python -m minitrain.cli.private_cache [PROJECT ...]

DVC keeps an index of the project in /var/tmp/dvc, which every user may write to, and
unpickles what it finds there: another user of the machine can run code as you. This
sets ``core.site_cache_dir`` in ``.dvc/config.local`` to a folder of mode 0700 in the
project; DVC copies that setting to the temporary folders of experiments.
"""

import os
import subprocess
import sys
from pathlib import Path
from stat import S_ISDIR

from minitrain.core.errors import UserError, run_stage

KEY = "core.site_cache_dir"
# it overrides the configuration
ENVIRONMENT = "DVC_SITE_CACHE_DIR"
# what DVC takes where neither is set
DEFAULT = Path("/var/tmp/dvc")


def make_private_cache(project: Path) -> Path:
    """Create the folder and write it to ``.dvc/config.local`` of ``project``.

    Raises:
        UserError: Another user owns what is there, or DVC cannot write its setting.
    """
    # a container's root and its user may share a project: each has its own
    user = os.geteuid()
    if not (project / ".dvc").is_dir():
        raise UserError(f"{project}: must be a project of DVC")
    folder = project.resolve() / ".dvc" / "tmp" / f"site-cache-{user}"
    folder.parent.mkdir(exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not S_ISDIR(found.st_mode) or found.st_uid != user:
        raise UserError(f"{folder}: must be a folder of yours; remove it")
    folder.chmod(0o700)
    config = project / ".dvc" / "config.local"
    line = f"site_cache_dir = {folder}"
    # DVC takes a second to start
    if not config.is_file() or line not in map(
        str.strip, config.read_text().splitlines()
    ):
        done = _dvc_config(project, "--local", KEY, str(folder))
        if done.returncode:
            why = done.stderr.strip() or f"dvc config exits with {done.returncode}"
            raise UserError(f"{config}: {KEY} not set: {why}")
    return folder


def configured(project: Path) -> Path:
    """Return the site cache that DVC uses in ``project``, by all its settings."""
    value = _dvc_config(project, KEY).stdout.strip()
    return Path(os.environ.get(ENVIRONMENT) or value or DEFAULT)


def is_private(folder: Path) -> bool:
    """Return whether only this user can enter ``folder`` or one above it."""
    folder = folder.resolve()
    return any(map(_is_closed, (folder, *folder.parents)))


def _is_closed(folder: Path) -> bool:
    try:
        found = folder.stat()
    except OSError:
        return False
    return found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _dvc_config(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "dvc", "config", *arguments]
    return subprocess.run(command, cwd=project, capture_output=True, text=True)


def main() -> None:
    """Do so in the folders that the command line names, or the working directory."""
    for project in sys.argv[1:] or ["."]:
        make_private_cache(Path(project))


if __name__ == "__main__":
    run_stage(main)
