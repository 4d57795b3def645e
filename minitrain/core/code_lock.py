"""Lock files (``code.lock``) that list the code a study was measured with.

Each line is ``hash  path``: the hash of a Python file's syntax tree without docstrings
and comments, and the file's path relative to the project root.
"""

import ast
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def syntax_hash(source: str) -> str:
    """Return a hash (16 hex digits) of code, without comments, docstrings and layout.
    Raises SyntaxError if ``source`` is not valid Python.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False):
            del node.body[0]
    return hashlib.sha256(repr(_shape(tree)).encode()).hexdigest()[:16]


def _shape(node: Any) -> Any:
    # ast.dump changes between Python versions, which add fields that are empty
    if isinstance(node, ast.AST):
        fields = ((name, _shape(value)) for name, value in ast.iter_fields(node))
        kept = [(name, value) for name, value in fields if value not in (None, ())]
        return type(node).__name__, *kept
    return tuple(map(_shape, node)) if isinstance(node, list) else node


def lock_of(root: Path, files: Iterable[str]) -> dict[str, str]:
    """Return the :func:`syntax_hash` by path of those ``files`` that ``root`` has."""
    there = [file for file in sorted(files) if (root / file).is_file()]
    return {file: syntax_hash((root / file).read_text("utf-8")) for file in there}


def read_lock(file: Path) -> dict[str, str]:
    """Return the hashes in a ``code.lock`` by path; empty if the file is missing."""
    lines = file.read_text("utf-8").splitlines() if file.is_file() else []
    pairs = (line.split("  ", 1) for line in lines)
    return {path: value for value, path in pairs}


def lock_text(lock: Mapping[str, str]) -> str:
    """Return the content of a ``code.lock`` for ``lock``, hashes by path."""
    return "".join(f"{value}  {path}\n" for path, value in sorted(lock.items()))


def changed_since(root: Path, lock: Mapping[str, str]) -> list[str]:
    """Return the paths in ``lock`` whose code changed or is missing in ``root``."""
    now = lock_of(root, lock)
    return [path for path, value in lock.items() if now.get(path) != value]
