"""Faults injected in this project's own source, each with what must catch it."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pages import Edit

STAGE_FAULTS = "tests/project/test_stage_faults.py::"


@dataclass(frozen=True)
class Mutant:
    """One fault; ``params`` are needed in addition to the small parameters.

    ``caught_by`` is a stage ("shard"), the equivalence stage and a rung that breaches
    there ("equivalence: witness_loss"), or a test ("tests/core/test_io.py::test_name").
    """

    name: str
    what: str
    caught_by: str
    edits: tuple[Edit, ...]
    params: dict[str, Any]

    @property
    def is_for_a_test(self) -> bool:
        """True if a named test must catch it, else the pipeline."""
        return self.caught_by.startswith("tests/")


def read_mutants(name: str) -> list[Mutant]:
    """Read mutants, separated by an empty line::

    # name: what it does
    file
    what catches it
    - a line to be replaced; several are consecutive in the file
    + a line in its place, if any
    another file, followed by its lines, if any
    = parameters that it needs, if any, as JSON
    """
    found = []
    for text in Path(__file__).with_name(name).read_text().split("\n\n"):
        title, file, caught_by, *lines = text.strip("\n").split("\n")
        params = json.loads(lines.pop()[2:]) if lines[-1].startswith("= ") else {}
        groups = re.split(r"^([^-+].*)\n", "\n".join(lines), flags=re.MULTILINE)
        files = [file, *groups[1::2]]
        edits = map(_edit, files, groups[::2])
        mutant, _, what = title.removeprefix("# ").partition(": ")
        found.append(Mutant(mutant, what, caught_by, tuple(edits), params))
    return found


def _edit(file: str, text: str) -> Edit:
    lines = text.rstrip("\n").split("\n")
    old, new = ([x[2:] for x in lines if x.startswith(sign)] for sign in "-+")
    return Edit(file, "\n".join(old), "\n".join(new))


# what run and replay share, then what a unit test sees
MUTANTS = [*read_mutants("pipeline_mutants.txt"), *read_mutants("unit_mutants.txt")]
