"""The verb table: reading it, and saying exactly what is wrong with a bad one.

American forms throughout (gotten, traveled), one form a cell. The columns are
``COLUMNS`` in any order; ``objects`` may be added and names, for each verb, a
class of ``minitrain.grammar.complements.COMPLEMENTS`` that completes it.
"""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from minitrain.core.errors import UserError
from minitrain.core.regular import MOST_OF_INDEX, require_regular
from minitrain.grammar.complements import COMPLEMENTS

COLUMNS = ("lemma", "third_person", "past", "past_participle", "present_participle")
OBJECTS = "objects"


@dataclass(frozen=True, slots=True)
class Verb:
    """One row of the table; ``objects`` is the class of phrases that may follow."""

    lemma: str
    third_person: str
    past: str
    past_participle: str
    present_participle: str
    objects: str = "none"


def load_verbs(path: Path) -> tuple[Verb, ...]:
    """Read the verb table (CSV, UTF-8); without an ``objects`` column every verb stands
    alone. Raises UserError naming file, line, column and value for what is no table of
    verbs, and OSError where the file cannot be read.
    """
    rows = _rows(path)
    line, header = next(rows, (0, []))
    if not header:
        raise UserError(
            f"{path}: the file is empty, allowed: a line of column names "
            f"({', '.join(COLUMNS)}), then one verb a line"
        )
    _check_header(path, line, header)
    verbs: dict[str, Verb] = {}
    line_of: dict[str, int] = {}
    for line, row in rows:
        verb = _verb(path, line, header, row)
        if before := line_of.get(verb.lemma):
            problem = f"column lemma: {verb.lemma!r} stands in line {before} already"
            raise _wrong(path, line, problem, "each verb once")
        line_of[verb.lemma] = line
        verbs[verb.lemma] = verb
    if not verbs:
        problem = "no verb follows the column names"
        raise _wrong(path, line, problem, "one verb a line, at least one")
    return tuple(verbs.values())


def _wrong(path: Path, line: int, problem: str, allowed: str) -> UserError:
    return UserError(f"{path}:{line}: {problem}, allowed: {allowed}")


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
    while True:
        # a quoted cell may span lines: a row is known by its first line
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            allowed = "cells separated by commas, quotes closed"
            raise _wrong(path, line, f"not valid CSV ({error})", allowed) from None
        if row:
            yield line, row


def _text(path: Path) -> str:
    try:
        data = require_regular(path, MOST_OF_INDEX).read_bytes()
    except FileNotFoundError:
        raise UserError(
            f"{path}: no such file, allowed: a CSV table of verbs with the "
            f"columns {', '.join(COLUMNS)}"
        ) from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # utf-8-sig counts from behind the mark, which holds no line end
        line = error.object[: error.start].count(b"\n") + 1
        problem = f"byte 0x{error.object[error.start]:02x} is not UTF-8"
        raise _wrong(path, line, problem, "UTF-8 text") from None


def _check_header(path: Path, line: int, header: list[str]) -> None:
    allowed = f"{', '.join(COLUMNS)} and optionally {OBJECTS}"
    for name in COLUMNS:
        if name not in header:
            found = ", ".join(map(repr, header))
            problem = f"column {name} is absent, the file has {found}"
            raise _wrong(path, line, problem, allowed)
    for index, name in enumerate(header):
        if name not in (*COLUMNS, OBJECTS) or name in header[:index]:
            fault = "stands twice" if name in header[:index] else "is unknown"
            problem = f"column {name!r} {fault}"
            raise _wrong(path, line, problem, f"{allowed}, each once")


def _verb(path: Path, line: int, header: list[str], row: list[str]) -> Verb:
    if len(row) != len(header):
        problem = f"{len(row)} fields ({','.join(row)!r})"
        raise _wrong(path, line, problem, f"{len(header)}, one a column")
    cells = dict(zip(header, row, strict=True))
    for column, value in cells.items():
        allowed = "lower-case letters, hyphens between them"
        right = all(p.isalpha() and p.islower() for p in value.split("-"))
        if column == OBJECTS:
            allowed = f"one of {', '.join(sorted(COMPLEMENTS))}"
            right = value in COMPLEMENTS
        if not right:
            shown = repr(value) if value else "the cell is empty"
            raise _wrong(path, line, f"column {column}: {shown}", allowed)
    return Verb(**cells)
