"""Which files a stage script imports, directly or not: what its deps must be."""

import ast
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
        for name in names:
            files |= _files(root, name)
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
