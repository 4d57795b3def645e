"""Import graph of the project: the files that a script executes."""

import ast
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path


def imported_by(root: Path, script: Path) -> set[str]:
    """Return the project files that ``script`` (relative to ``root``) executes,
    including itself.
    """
    found: set[str] = set()
    waiting = {script.as_posix()}
    while waiting:
        path = waiting.pop()
        found.add(path)
        waiting |= direct_imports(root, Path(path)) - found
    return found


def as_deps(files: set[str]) -> set[str]:
    """Return the same as DVC dependencies: whole packages of the library, else files.
    Excludes the top-level ``__init__``, so that a new version number retrains nothing,
    and the harness, which changes no result.
    """
    unmeasured = {"minitrain/__init__.py", "minitrain/harness"}
    return {_package(Path(file)) for file in files} - unmeasured


def _package(path: Path) -> str:
    in_package = path.parts[0] == "minitrain" and len(path.parts) > 2
    return Path(*path.parts[:2] if in_package else path.parts).as_posix()


@cache
def direct_imports(root: Path, path: Path) -> frozenset[str]:
    """Return the project files that ``path`` imports or starts as a process."""
    files = set()
    for name in _names(ast.parse((root / path).read_text()), path):
        files |= _files(root, name)
        files |= _of_studies(root, path, name)
    return frozenset(files)


def _of_studies(root: Path, path: Path, name: str) -> set[str]:
    """Return the folders that a study imports from: its own and common; tests: all."""
    if "." in name:
        return set()
    home = path.parts[1] if path.parts[0] == "studies" else "*"
    folders = {"studies": (home, "common"), "tests": ("*",)}.get(path.parts[0], ())
    found = [f for one in folders for f in root.glob(f"studies/{one}/{name}.py")]
    return {file.relative_to(root).as_posix() for file in found}


def _names(tree: ast.AST, path: Path) -> Iterator[str]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.List):
            # a module started as a process: [python, "-m", ...]
            words = [getattr(word, "value", None) for word in node.elts]
            yield from (
                b for a, b in pairwise(words) if a == "-m" and isinstance(b, str)
            )
        waiting += ast.iter_child_nodes(node)


def _files(root: Path, module: str) -> set[str]:
    """Return the module's file and the __init__ of every enclosing package."""
    parts = module.split(".")
    if parts[0] not in ("minitrain", "stages"):
        return set()
    candidates = [Path(*parts).with_suffix(".py")]
    candidates += [
        Path(*parts[:depth], "__init__.py") for depth in range(1, len(parts) + 1)
    ]
    return {c.as_posix() for c in candidates if (root / c).is_file()}
