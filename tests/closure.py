"""Which files a stage script imports, directly or not: what its deps must be."""

import ast
from itertools import pairwise
from pathlib import Path


def import_closure(root: Path, script: Path) -> set[str]:
    """Files of the project that ``script`` (relative to ``root``) runs with."""
    found: set[str] = set()
    waiting = {script.as_posix()}
    while waiting:
        path = waiting.pop()
        found.add(path)
        waiting |= _imports(root, Path(path)) - found
    return found


def _imports(root: Path, path: Path) -> set[str]:
    files = set()
    for node in ast.walk(ast.parse((root / path).read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            names = [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.List):
            # a module that a new process is started with: [python, "-m", ...]
            words = [getattr(word, "value", None) for word in node.elts]
            names = [b for a, b in pairwise(words) if a == "-m" and isinstance(b, str)]
        for name in names:
            files |= _files(root, name)
            # a study's own: what lies beside the script
            beside = path.with_name(f"{name}.py")
            if path.parts[0] == "studies" and (root / beside).is_file():
                files.add(beside.as_posix())
    return files


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
