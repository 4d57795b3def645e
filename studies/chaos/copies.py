"""Small copies of the project: an undisturbed one, and one for each trial."""

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from results import digests
from ruamel.yaml import YAML

STUDY = Path(__file__).resolve().parent
ROOT = STUDY.parents[1]
FILES = ("dvc.yaml", ".dvcignore", "requirements.lock", "params.yaml", "data/verbs.csv")
FOLDERS = ("minitrain", "stages")
CONFIG = "[core]\n    analytics = false\n    no_scm = true\n"
TARGETS = ("shard", "train@1", "train@2", "replay@2")
NOT_OURS = ("MINITRAIN_", "DVC_", "PYTHONPATH", "RANK", "MASTER_")


@dataclass
class Undisturbed:
    """Completed copy, the digests of its files, and the seconds per target."""

    folder: Path
    digests: dict[str, str] = field(default_factory=dict)
    took_s: dict[str, float] = field(default_factory=dict)


def make_undisturbed(folder: Path) -> Undisturbed:
    """Copy the project to ``folder`` with small parameters and run every target."""
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    for name in FOLDERS:
        leave = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=leave)
    (folder / ".dvc").mkdir()
    (folder / ".dvc/config").write_text(CONFIG)
    yaml = YAML()
    params = yaml.load(folder / "params.yaml")
    for section, values in yaml.load(STUDY / "small.yaml").items():
        # an unknown section would be an error
        if section in params:
            params[section].update(values)
    yaml.dump(params, folder / "params.yaml")
    done = Undisturbed(folder)
    for target in TARGETS:
        started = time.monotonic()
        done_by = dvc_repro(target)
        subprocess.run(done_by, cwd=folder, env=environment(folder), check=True)
        done.took_s[target] = time.monotonic() - started
    done.digests = digests(folder)
    return done


def copy_without(done: Undisturbed, target: str, folder: Path) -> None:
    """Copy ``done`` to ``folder`` in a state before ``target`` was run."""
    shutil.copytree(done.folder, folder, symlinks=True, dirs_exist_ok=True)
    yaml = YAML()
    lock = yaml.load(folder / "dvc.lock")
    for out in lock["stages"].pop(target)["outs"]:
        path, md5 = folder / out["path"], out["md5"]
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        cached = folder / ".dvc/cache/files/md5" / md5[:2] / md5[2:]
        cached.unlink(missing_ok=True)
    yaml.dump(lock, folder / "dvc.lock")
    # DVC's run cache would restore the results
    shutil.rmtree(folder / ".dvc/cache/runs", ignore_errors=True)


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Return an environment with a separate temporary folder, not the caller's."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(NOT_OURS)}
    temporary = folder.with_name(f"{folder.name}-temporary")
    temporary.mkdir(exist_ok=True)
    site = str(folder.with_name(f"{folder.name}-site"))
    own = {"TMPDIR": str(temporary), "DVC_SITE_CACHE_DIR": site}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    return {**kept, **own, "PATH": path, **more}


def dvc_repro(target: str) -> list[str]:
    """Return the command that runs ``target``."""
    return [sys.executable, "-m", "dvc", "repro", target]
