"""Reading and validation of the verb table.

American forms throughout (gotten, traveled), one form per cell. The columns are
``COLUMNS`` in any order; the optional column ``objects`` names, for each verb, a class
of complements in ``minitrain.grammar.phrases.COMPLEMENTS``.
"""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from minitrain.core.errors import UserError, did_you_mean
from minitrain.core.files import MOST_OF_INDEX, require_regular
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
    rows = _rows(path)
    line, header = next(rows, (1, []))
    if not {*COLUMNS} <= {*header} <= {*COLUMNS, OBJECTS} or len({*header}) < len(
        header
    ):
        problem = f"the columns are {', '.join(map(repr, header)) or 'absent'}"
        allowed = f"{', '.join(COLUMNS)} and optionally {OBJECTS}, each once"
        raise _wrong(path, line, problem, allowed)
    verbs: dict[str, Verb] = {}
    for line, row in rows:
        verb = _verb(path, line, header, row)
        if verb.lemma in verbs:
            problem = f"column lemma: {verb.lemma!r} is a duplicate"
            raise _wrong(path, line, problem, "each verb once")
        verbs[verb.lemma] = verb
    if not verbs:
        problem = "no verb follows the column names"
        raise _wrong(path, line, problem, "one verb per line, at least one")
    return tuple(verbs.values())


def _wrong(path: Path, line: int, problem: str, allowed: str) -> UserError:
    return UserError(f"{path}:{line}: {problem}, allowed: {allowed}")


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    try:
        data = require_regular(path, MOST_OF_INDEX).read_bytes()
        text = data.decode("utf-8-sig")
    except FileNotFoundError:
        allowed = f"a CSV table of verbs with the columns {', '.join(COLUMNS)}"
        raise UserError(f"{path}: no such file, allowed: {allowed}") from None
    except UnicodeDecodeError as error:
        # error.start excludes the byte order mark, which has no line break
        line = error.object[: error.start].count(b"\n") + 1
        problem = f"byte 0x{error.object[error.start]:02x} is not UTF-8"
        raise _wrong(path, line, problem, "UTF-8 text") from None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    # report the first line of a row, since a quoted cell may span several
    line = 1
    try:
        for row in reader:
            if row:
                yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        allowed = "cells separated by commas, quotes closed"
        raise _wrong(path, line, f"not valid CSV ({error})", allowed) from None


def _verb(path: Path, line: int, header: list[str], row: list[str]) -> Verb:
    if len(row) != len(header):
        problem = f"{len(row)} fields ({','.join(row)!r})"
        raise _wrong(path, line, problem, f"{len(header)}, one per column")
    cells = dict(zip(header, row, strict=True))
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
