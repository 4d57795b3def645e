"""The files of a copied project that its processes execute, noted as they run."""

from pathlib import Path

# Put before minitrain/__init__.py, which every process of a study imports, with any
# environment; forked ranks inherit the hook. A file counts once its module runs.
HOOK = """\
import os as _os
import sys as _sys


def _note(event, arguments):
    code = arguments[0] if event == "exec" and arguments else None
    if getattr(code, "co_name", "") == "<module>":
        _write(code.co_filename)


def _write(name):
    with open({notes!r}, "a") as file:
        file.write(_os.path.realpath(name) + "\\n")


for _module in list(_sys.modules.values()):
    if getattr(_module, "__file__", None):
        _write(_module.__file__)
_sys.addaudithook(_note)
"""


def note_executed(project: Path) -> Path:
    """Change the copy ``project`` so that its processes note the files they execute."""
    notes = project.resolve() / "executed.txt"
    door = project / "minitrain/__init__.py"
    docstring, future, rest = door.read_text().partition("from __future__")
    assert not future
    door.write_text(HOOK.format(notes=str(notes)) + docstring + rest)
    return notes


def executed(notes: Path) -> set[str]:
    """The files that were noted, by their paths from the root of the project."""
    root = notes.parent
    paths = {Path(line) for line in notes.read_text().splitlines()}
    return {
        path.relative_to(root).as_posix()
        for path in paths
        if path.is_relative_to(root) and path.is_file()
    }
