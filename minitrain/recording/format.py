"""File format of a recording: ``rank-R.jsonl`` in a folder, one JSON object a line.

Such an object is called a row. The first is the header, of kind ``recording``. Then
come a ``step`` for each recorded step of each optimizer, an ``alarm`` or ``note`` for
each finding of the rules, and an ``end``, which is missing if the recording ended
early. Each line is flushed, so a killed run leaves all that it recorded. Numbers that
are not finite are written as Python's JSON has them: NaN, Infinity.
"""

import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from minitrain.core.errors import UserError, describe_os_error
from minitrain.core.files import nearest_file, require_regular
from minitrain.core.printable import print_note

VERSION = 3
ATTEMPT = re.compile(r"attempt-(0|[1-9]\d*)")
RANK_FILE = re.compile(r"rank-(0|[1-9]\d*)\.jsonl")
ADVICE = "name another folder, or remove that one"
# errors of a damaged line; RecursionError: it is nested too deeply
OF_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
Row = dict[str, Any]


@dataclass(frozen=True)
class OfRank:
    """The rows of one rank. ``steps``: by (optimizer number, step), in file order.
    ``alarms``: alarms and notes. ``end``: None if the recording ended early.
    """

    header: Row
    steps: dict[tuple[int, int], Row]
    alarms: list[Row]
    end: Row | None


@dataclass(frozen=True)
class Recording:
    """The recording of a run. ``ranks``: by rank, those with a file in ``folder``."""

    folder: Path
    ranks: dict[int, OfRank]

    @property
    def world_size(self) -> int:
        """The number of ranks of the run, including :attr:`missing` ones."""
        return int(next(iter(self.ranks.values())).header["world_size"])

    @property
    def missing(self) -> list[int]:
        """The ranks without a recording in ``folder``."""
        return [rank for rank in range(self.world_size) if rank not in self.ranks]


def path_of_rank(folder: Path, rank: int) -> Path:
    """Return the path of the recording of ``rank``, a file in ``folder``."""
    return folder / f"rank-{rank}.jsonl"


def folder_of_attempt(folder: Path, rank: int) -> Path:
    """Return the folder in which ``rank`` records: ``folder``, or its subfolder
    ``attempt-N`` if torchrun may restart failed ranks (``--max-restarts``).
    """
    if int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)) == 0:
        return folder
    number = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    hosts = int(os.environ.get("GROUP_WORLD_SIZE", 1))
    # each host counts only its own failures
    while hosts > 1 and path_of_rank(folder / f"attempt-{number}", rank).exists():
        number += 1
    return folder / f"attempt-{number}"


def attempt_of(folder: Path) -> int:
    """Return N if ``folder`` is named ``attempt-N``, else 0."""
    match = ATTEMPT.fullmatch(folder.name)
    return int(match[1]) if match else 0


def last_attempt(folder: Path) -> Path:
    """Return the last subfolder ``attempt-N`` of ``folder`` that has a recording;
    ``folder`` itself if none has. UserError if both have recordings.
    """
    found = {
        int(match[1]): path
        for path in folder.glob("attempt-*/")
        if (match := ATTEMPT.fullmatch(path.name)) and ranks_in(path)
    }
    last = found[max(found)] if found else folder
    if found and ranks_in(folder):
        raise UserError(f"{folder}: has a recording next to {last.name}/; {ADVICE}")
    return last


def is_recording(path: Path) -> bool:
    """Return true if ``path`` is a folder in which a rank began to record."""
    return path.is_dir() and bool(ranks_in(last_attempt(path)))


def ranks_in(folder: Path) -> list[int]:
    """Return the ranks that have a file ``rank-R.jsonl`` in ``folder``, sorted."""
    matches = (RANK_FILE.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in matches if match)


def read_recording(folder: Path) -> Recording:
    """Return the recording in ``folder``; of several attempts the last one. A torn last
    line is ignored, as is a rank that was killed before its first line was complete.

    Raises:
        UserError: there is no recording, it is damaged or of another version, or its
            ranks are of different runs.
    """
    if not folder.exists():
        raise UserError(f"{folder}: does not exist{nearest_file(folder)}")
    if not is_recording(folder):
        raise UserError(
            f"{folder}: no recording: rank-0.jsonl is missing; `minitrain record "
            "FOLDER -- COMMAND` or minitrain.record in the script writes it"
        )
    folder = last_attempt(folder)
    read = {rank: _read_rank(folder, rank) for rank in ranks_in(folder)}
    ranks = {rank: one for rank, one in read.items() if one is not None}
    if not ranks:
        raise UserError(f"{folder}: nothing recorded; no rank came to its first step")
    for key in ("world_size", "every", "twin"):
        values = {str(one.header[key]): rank for rank, one in ranks.items()}
        if len(values) > 1:
            which = ", ".join(f"{value} on rank {r}" for value, r in values.items())
            raise UserError(f"{folder}: ranks of different runs: {key} is {which}")
    recording = Recording(folder, ranks)
    if max(ranks) >= recording.world_size:
        raise UserError(
            f"{path_of_rank(folder, max(ranks))}: rank {max(ranks)} is none of a run "
            f"with world_size {recording.world_size}"
        )
    return recording


def _read_rank(folder: Path, rank: int) -> OfRank | None:
    path = path_of_rank(folder, rank)
    try:
        data = require_regular(path).read_bytes()
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}): must be a file of a recording"
        ) from error
    # a killed run may have torn the last line
    lines = data.split(b"\n")[:-1]
    if not lines:
        return None
    header, *rows = [_row(path, number, line) for number, line in enumerate(lines, 1)]
    if header["kind"] != "recording" or header["rank"] != rank:
        raise UserError(f"{path}: line 1: not the header of a recording of rank {rank}")
    steps = {(r["optimizer"], r["step"]): r for r in rows if r["kind"] == "step"}
    alarms = [row for row in rows if row["kind"] in ("alarm", "note")]
    ends = [row for row in rows if row["kind"] == "end"]
    if len(steps) + len(alarms) + len(ends) != len(rows) or len(ends) > 1:
        raise UserError(f"{path}: damaged: a header, a step or the end is there twice")
    return OfRank(header, steps, alarms, ends[0] if ends else None)


def _row(path: Path, number: int, line: bytes) -> Row:
    # recording a run does not import pydantic
    from minitrain.recording.fields import fault_of, shown

    try:
        row = json.loads(line)
        version = row.get("version", VERSION)
        fault = fault_of(row) if version == VERSION else None
    except OF_DAMAGE as error:
        reason = f"{type(error).__name__}: {error}"[:80]
        raise UserError(f"{path}: line {number}: damaged ({reason})") from error
    if version != VERSION:
        raise UserError(
            f"{path}: version = {shown(version)}: must be {VERSION}; another minitrain "
            "wrote this recording"
        )
    if fault:
        raise UserError(f"{path}: line {number}: damaged: {fault}")
    return row


def line_of(row: Row) -> bytes:
    """Return ``row`` as one line of a recording: JSON in UTF-8, and a newline."""
    text = json.dumps(row, separators=(",", ":"), ensure_ascii=False)
    return (text + "\n").encode()


def refuse_second(folder: Path, rank: int) -> None:
    """Raise UserError if ``rank`` has a recording in ``folder``, or if a folder would
    have both attempts (:func:`folder_of_attempt`) and a recording without attempts.
    """
    if path_of_rank(folder, rank).exists():
        raise UserError(f"{folder}: has a recording of rank {rank}; {ADVICE}")
    within, parent = ATTEMPT.fullmatch(folder.name), folder.parent
    if within and parent.is_dir() and ranks_in(parent):
        raise UserError(f"{parent}: has a recording without attempts; {ADVICE}")
    if (last := last_attempt(folder)) != folder:
        raise UserError(f"{folder}: has a recording in {last.name}/; {ADVICE}")


class Writer:
    """Append lines to the file of ``rank`` in ``folder``. Each is flushed before
    :meth:`append` returns. UserError if that rank has a recording there.

    On a full disk the recording ends, with one line on stderr, and the run goes on.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        refuse_second(folder, rank)
        self._rank, self._path = rank, path_of_rank(folder, rank)
        folder.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO | None = open(self._path, "xb")  # noqa: SIM115

    def append(self, line: bytes) -> None:
        """Write a line from :func:`line_of`; do nothing once a write has failed."""
        if self._file is None:
            return
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            error.filename = str(self._path)
            why = describe_os_error(error)
            print_note(f"minitrain: rank {self._rank} records no more: {why}")
            self.close()

    def close(self) -> None:
        """Close the file. Calling it twice is harmless."""
        file, self._file = self._file, None
        if file is not None:
            # close() retries the failed write
            with suppress(OSError):
                file.close()
