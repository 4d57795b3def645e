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

from minitrain.core.errors import UserError, run_stage


def make_private_cache(project: Path) -> Path:
    """Create the cache folder, write its path to DVC's local config, and return it.
    Raises UserError if ``project`` is not a DVC project, or DVC fails.
    """
    if not (project / ".dvc").is_dir():
        raise UserError(f"{project}: must be a project of DVC")
    # root in a container may share the project with a user: each has its own folder
    folder = project.resolve() / ".dvc" / "tmp" / f"site-cache-{os.geteuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    config = project / ".dvc" / "config.local"
    # DVC takes a second to start, so it is called for a change only
    lines = config.read_text().splitlines() if config.is_file() else []
    if f"site_cache_dir = {folder}" not in map(str.strip, lines):
        command = [sys.executable, "-P", "-m", "dvc", "config", "--local"]
        key = "core.site_cache_dir"
        if subprocess.run([*command, key, str(folder)], cwd=project).returncode:
            raise UserError(f"{config}: {key} not set, as the lines above say")
    return folder


def main() -> None:
    """Set the cache of the projects on the command line, or of the working folder."""
    for project in sys.argv[1:] or ["."]:
        make_private_cache(Path(project))


if __name__ == "__main__":
    run_stage(main)
