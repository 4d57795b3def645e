"""Write the locks of studies: lists of the code files that their stages execute.

python studies/code_lock.py [NAME ...]

DVC does not follow imports, so a stage of a study depends on a list instead: on
``code.lock`` if it measures, on ``drawing.lock`` if it only reads what was measured.
`make study-NAME` writes them before it runs the study. What imports do not show stands
under ``meta`` of a stage: scripts that it starts (``runs``) and the strategies that it
trains with (``sync``: names, or "all").
"""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from minitrain.core.code_lock import lock_of, lock_text
from minitrain.core.errors import run_stage
from minitrain.core.files import open_atomic
from minitrain.sync.catalog import STRATEGIES

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ("code.lock", "drawing.lock")
# what changes no result, and why: a file, or a folder
HARNESS = {
    "minitrain/__init__.py": "names what lies in packages",
    "minitrain/harness/": "starts, watches and ends ranks",
    "minitrain/core/errors.py": "reports mistakes",
    "minitrain/core/files.py": "writes files atomically",
    "minitrain/core/nearest.py": "suggests a name for a misspelt one",
    "minitrain/core/printable.py": "makes text safe to print",
    "minitrain/core/progress.py": "shows progress",
    "minitrain/core/regular.py": "opens regular files alone",
    "minitrain/core/signals.py": "ends a process whose parent has ended",
    "minitrain/train/checkpoint.py": "keeps checkpoints, which change no bit of a run",
}
# but for the studies whose subject it is
OF_HARNESS = ("chaos", "checkpoints", "resume")


def main() -> None:
    names = sys.argv[1:] or [
        file.parent.name for file in ROOT.glob("studies/*/dvc.yaml")
    ]
    for name in names:
        for lock, files in locks_of(ROOT / "studies" / name).items():
            write_if_new(
                ROOT / "studies" / name / lock, lock_text(lock_of(ROOT, files))
            )


def locks_of(study: Path) -> dict[str, set[str]]:
    """Return the files that the stages of ``study`` execute, by the lock on which a
    stage depends; without HARNESS where it is not what is studied.
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
    # params.yaml names the file of the default model
    if "minitrain/model/factory.py" in found:
        found |= imported_by(ROOT, Path("minitrain/model/gpt.py"))
    return found


def is_measured(path: str) -> bool:
    """Return whether a change of the file at ``path`` may change a result."""
    return not path.startswith(tuple(HARNESS))


def write_if_new(file: Path, text: str) -> None:
    if not file.is_file() or file.read_text("utf-8") != text:
        with open_atomic(file) as stream:
            stream.write(text)


def imported_by(root: Path, script: Path) -> set[str]:
    """Files of the project that ``script`` (relative to ``root``) runs with, itself
    included.
    """
    found: set[str] = set()
    waiting = {script.as_posix()}
    while waiting:
        path = waiting.pop()
        found.add(path)
        waiting |= direct_imports(root, Path(path)) - found
    return found


def as_deps(files: set[str]) -> set[str]:
    """The same as dependencies: of the library whole packages, else files. Its door
    computes nothing, so that a new version number trains nothing, and what starts and
    watches ranks changes no result.
    """
    unmeasured = {"minitrain/__init__.py", "minitrain/harness"}
    return {_package(Path(file)) for file in files} - unmeasured


def _package(path: Path) -> str:
    in_package = path.parts[0] == "minitrain" and len(path.parts) > 2
    return Path(*path.parts[:2] if in_package else path.parts).as_posix()


@cache
def direct_imports(root: Path, path: Path) -> frozenset[str]:
    """Files of the project that ``path`` imports, or starts as a process."""
    files = set()
    for name in _names(ast.parse((root / path).read_text()), path):
        files |= _files(root, name)
        files |= _of_studies(root, path, name)
    return frozenset(files)


def _of_studies(root: Path, path: Path, name: str) -> set[str]:
    """A study imports what lies beside it and in common; tests import from all."""
    home = path.parts[1] if path.parts[0] == "studies" else "*"
    folders = {"studies": (home, "common"), "tests": ("*",)}.get(path.parts[0], ())
    found = [f for one in folders for f in root.glob(f"studies/{one}/{name}.py")]
    return {file.relative_to(root).as_posix() for file in found}


def _names(tree: ast.AST, path: Path) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.List):
            # a module that a new process is started with: [python, "-m", ...]
            words = [getattr(word, "value", None) for word in node.elts]
            yield from (
                b for a, b in pairwise(words) if a == "-m" and isinstance(b, str)
            )
        yield from _names(node, path)


def _files(root: Path, module: str) -> set[str]:
    """The module's file, and the __init__ of every package around it."""
    parts = module.split(".")
    if parts[0] not in ("minitrain", "stages"):
        return set()
    candidates = [Path(*parts).with_suffix(".py")]
    candidates += [
        Path(*parts[:depth], "__init__.py") for depth in range(1, len(parts) + 1)
    ]
    return {c.as_posix() for c in candidates if (root / c).is_file()}


if __name__ == "__main__":
    run_stage(main)
