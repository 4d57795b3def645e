"""Write the lock files of studies: lists of the code files that their stages execute.

python -m studies.code_lock [NAME ...]

DVC does not follow imports, so a stage of a study depends on such a list: on
``code.lock`` if it measures, on ``drawing.lock`` if it only reads measurements. `make
study-NAME` writes them before running the study. ``meta`` of a stage lists dependencies
that imports do not show: scripts that it starts (``runs``) and the strategies that it
trains with (``sync``: names, or "all").
"""

import sys
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from minitrain.core.code_lock import lock_of, lock_text
from minitrain.core.errors import run_stage
from minitrain.core.files import open_atomic
from minitrain.sync.catalog import STRATEGIES
from studies.import_graph import imported_by

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ("code.lock", "drawing.lock")
# files and folders that change no result, with the reason
HARNESS = {
    "minitrain/__init__.py": "names what lies in packages",
    "stages/__init__.py": "reports packages that this Python lacks",
    "minitrain/harness/": "starts, watches and ends ranks",
    "minitrain/core/errors.py": "reports mistakes",
    "minitrain/core/files.py": "writes files atomically, and reads regular ones",
    "minitrain/core/printable.py": "makes text safe to print",
    "minitrain/core/progress.py": "shows progress",
    "minitrain/core/signals.py": "ends a process whose parent has ended",
    "minitrain/train/checkpoint.py": "keeps checkpoints, which change no bit of a run",
}
# studies about the harness, which depend on it
OF_HARNESS = ("chaos", "checkpoints", "resume")


def main() -> None:
    names = sys.argv[1:] or [p.parent.name for p in ROOT.glob("studies/*/dvc.yaml")]
    for study in [ROOT / "studies" / name for name in names]:
        for lock, files in locks_of(study).items():
            with open_atomic(study / lock) as file:
                file.write(lock_text(lock_of(ROOT, files)))


def locks_of(study: Path) -> dict[str, set[str]]:
    """Return the files that the stages of ``study`` execute, by lock file; without
    HARNESS unless it is the subject of the study.
    """
    stages = YAML(typ="safe").load((study / "dvc.yaml").read_text("utf-8"))["stages"]
    found: dict[str, set[str]] = {}
    for stage in stages.values():
        for lock in {*stage["deps"]} & {*LOCKS}:
            found.setdefault(lock, set()).update(executed_by(study, stage))
    if study.name not in OF_HARNESS:
        found = {lock: {*filter(is_measured, files)} for lock, files in found.items()}
    return found


def executed_by(study: Path, stage: dict[str, Any]) -> set[str]:
    """Return the files of the project that a stage of ``study`` executes."""
    meta = stage.get("meta", {})
    scripts = [stage["cmd"].split()[-1], *meta.get("runs", [])]
    paths = [(study / script).resolve().relative_to(ROOT) for script in scripts]
    names = STRATEGIES if meta.get("sync") == "all" else meta.get("sync", [])
    homes = {STRATEGIES[name].partition(":")[0] for name in names}
    paths += [Path(*home.split(".")).with_suffix(".py") for home in homes]
    found = {file for path in paths for file in imported_by(ROOT, path)}
    # the default model, imported by its path in params.yaml
    if "minitrain/model/factory.py" in found:
        found |= imported_by(ROOT, Path("minitrain/model/gpt.py"))
    return found


def is_measured(path: str) -> bool:
    """Return true if a change of the file at ``path`` can change a result."""
    return not path.startswith(tuple(HARNESS))


if __name__ == "__main__":
    run_stage(main)
