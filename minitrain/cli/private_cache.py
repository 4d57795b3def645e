"""A private site cache for DVC.

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


def make_private_cache(project: Path) -> Path:
    """Create the cache folder, write its path to DVC's local config, and return the
    path.

    Raises:
        UserError: ``project`` is not a DVC project, the folder is not yours, or DVC
            fails.
    """
    # root in a container may share the project with a user: each has its own folder
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
    # DVC takes a second to start, so it is called for a change only
    lines = config.read_text().splitlines() if config.is_file() else []
    if f"site_cache_dir = {folder}" not in map(str.strip, lines):
        command = [sys.executable, "-P", "-m", "dvc", "config", "--local", KEY]
        done = subprocess.run(
            [*command, str(folder)], cwd=project, capture_output=True, text=True
        )
        if done.returncode:
            why = done.stderr.strip() or f"dvc config exits with {done.returncode}"
            raise UserError(f"{config}: {KEY} not set: {why}")
    return folder


def main() -> None:
    """Set the cache of the projects on the command line, or of the working folder."""
    for project in sys.argv[1:] or ["."]:
        make_private_cache(Path(project))


if __name__ == "__main__":
    run_stage(main)
