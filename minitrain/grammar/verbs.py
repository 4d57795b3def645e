"""Reading and validation of the verb table.

American forms throughout (gotten, traveled), one form per cell. The columns are
``COLUMNS`` in any order; the optional column ``objects`` names, for each verb, a class
of complements in ``minitrain.grammar.phrases.COMPLEMENTS``.
"""

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minitrain.core.errors import UserError, did_you_mean
from minitrain.core.files import require_regular
from minitrain.grammar.phrases import COMPLEMENTS

COLUMNS = ("lemma", "third_person", "past", "past_participle", "present_participle")
OBJECTS = "objects"


@dataclass(frozen=True, slots=True)
class Verb:
    """Row of the verb table; ``objects`` is the class of the verb's complements."""

    lemma: str
    third_person: str
    past: str
    past_participle: str
    present_participle: str
    objects: str = "none"


def load_verbs(path: Path) -> tuple[Verb, ...]:
    """Return the verbs in a table (CSV, UTF-8); without an ``objects`` column they take
    no complement. Raises UserError with file, line, column and value for an invalid
    table, and OSError if the file cannot be read.
    """
    reader = csv.DictReader(io.StringIO(_text(path), newline=""), strict=True)
    verbs: dict[str, Verb] = {}
    try:
        columns = sorted(reader.fieldnames or ())
        if columns not in (sorted(COLUMNS), sorted((*COLUMNS, OBJECTS))):
            problem = f"the columns are {', '.join(map(repr, columns)) or 'absent'}"
            allowed = f"{', '.join(COLUMNS)} and optionally {OBJECTS}, each once"
            raise _wrong(path, 1, problem, allowed)
        for cells in reader:
            verb = _verb(path, reader.line_num, cells)
            if verb.lemma in verbs:
                problem = f"column lemma: {verb.lemma!r} is a duplicate"
                raise _wrong(path, reader.line_num, problem, "each verb once")
            verbs[verb.lemma] = verb
    except csv.Error as error:
        allowed = "cells separated by commas, quotes closed"
        problem = f"not valid CSV ({error})"
        raise _wrong(path, reader.reader.line_num, problem, allowed) from None
    if not verbs:
        raise _wrong(path, 1, "no verb follows the column names", "at least one")
    return tuple(verbs.values())


def _wrong(path: Path, line: int, problem: str, allowed: str) -> UserError:
    return UserError(f"{path}:{line}: {problem}, allowed: {allowed}")


def _text(path: Path) -> str:
    try:
        return require_regular(path).read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        allowed = f"a CSV table of verbs with the columns {', '.join(COLUMNS)}"
        raise UserError(f"{path}: no such file, allowed: {allowed}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        problem = f"byte 0x{error.object[error.start]:02x} is not UTF-8"
        raise _wrong(path, line, problem, "UTF-8 text") from None


def _verb(path: Path, line: int, cells: dict[str, Any]) -> Verb:
    if None in cells or None in cells.values():
        problem = f"too few or too many cells ({', '.join(map(str, cells.values()))})"
        raise _wrong(path, line, problem, "one per column")
    for column, value in cells.items():
        allowed = "lower-case letters, hyphens between them"
        right = all(p.isalpha() and p.islower() for p in value.split("-"))
        if column == OBJECTS:
            near = did_you_mean(value, COMPLEMENTS)
            allowed = f"a name in minitrain/grammar/complements.txt{near}"
            right = value in COMPLEMENTS
        if not right:
            raise _wrong(path, line, f"column {column}: {value!r}", allowed)
    return Verb(**cells)
