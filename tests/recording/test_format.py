"""Files of a recording: written line by line, read whatever a kill left of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from minitrain.core.errors import UserError
from minitrain.recording.format import (
    NEEDED,
    Row,
    Writer,
    is_recording,
    path_of_rank,
    read_recording,
)


def row_of(kind: str, **values: Any) -> Row:
    return {"kind": kind} | dict.fromkeys(NEEDED[kind]) | values


def header(rank: int = 0, world_size: int = 1, **values: Any) -> Row:
    known = {"version": 1, "rank": rank, "world_size": world_size, "every": 10}
    return row_of("recording", **known, twin=False) | values


def step(number: int, optimizer: int = 0) -> Row:
    return row_of("step", step=number, optimizer=optimizer)


def write(folder: Path, *rows: Row, rank: int = 0) -> Path:
    writer = Writer(folder, rank)
    for row in rows:
        writer.append(row)
    writer.close()
    writer.close()
    return path_of_rank(folder, rank)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    for rank in (0, 1):
        alarm = row_of("alarm", line="ä")
        end = row_of("end", steps={"0": 2})
        write(tmp_path, header(rank, 2), step(0), alarm, step(1), end, alarm, rank=rank)
    recording = read_recording(tmp_path)
    assert recording.world_size == 2
    assert recording.missing == []
    one = recording.ranks[1]
    assert one.header["rank"] == 1
    assert list(one.steps) == [(0, 0), (0, 1)]
    assert [alarm["line"] for alarm in one.alarms] == ["ä", "ä"]
    assert one.end is not None
    assert one.end["steps"] == {"0": 2}


def test_each_row_is_there_at_once(tmp_path: Path) -> None:
    writer = Writer(tmp_path, 0)
    writer.append(header())
    writer.append(step(0))
    recorded = read_recording(tmp_path).ranks[0]
    assert list(recorded.steps) == [(0, 0)]
    assert recorded.end is None
    writer.close()


def test_numbers_that_are_not_finite_come_back(tmp_path: Path) -> None:
    write(tmp_path, header(), step(0) | {"loss": float("inf")})
    assert read_recording(tmp_path).ranks[0].steps[0, 0]["loss"] == float("inf")


def test_cut_anywhere_all_whole_rows_are_read(tmp_path: Path) -> None:
    path = write(tmp_path, header(), step(0), step(1) | {"inputs": [["ä"]]})
    whole = path.read_bytes()
    starts = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        rows = sum(start <= length for start in starts)
        if rows:
            recording = read_recording(tmp_path)
            assert len(recording.ranks[0].steps) == rows - 1
            continue
        with pytest.raises(UserError, match="nothing recorded"):
            read_recording(tmp_path)


def test_a_rank_without_a_whole_line_is_missing(tmp_path: Path) -> None:
    write(tmp_path, header(0, 3))
    path_of_rank(tmp_path, 1).write_text('{"kind": "recor')
    assert read_recording(tmp_path).missing == [1, 2]


def test_folders_without_a_recording(tmp_path: Path) -> None:
    (tmp_path / "rank-x.jsonl").touch()
    (tmp_path / "rank-00.jsonl").touch()
    for folder in (tmp_path, tmp_path / "none", tmp_path / "rank-x.jsonl"):
        assert not is_recording(folder)
        with pytest.raises(UserError, match="no recording"):
            read_recording(folder)


def test_a_second_recording_of_a_rank_is_refused(tmp_path: Path) -> None:
    write(tmp_path, header(0, 2))
    with pytest.raises(UserError, match=r"has a recording of rank 0; name another"):
        Writer(tmp_path, 0)
    # the other ranks write beside it
    Writer(tmp_path, 1).close()


DAMAGED: dict[str, tuple[list[Any], str]] = {
    "no json": (["{", header()], "line 1: damaged"),
    "no object": ([header(), [1]], "line 2: damaged"),
    "no text": ([header(), b"\xff\xfe"], "line 2: damaged"),
    "a hole": ([header(), b"\0" * 9], "line 2: damaged"),
    "no kind": ([{}], "line 1: damaged"),
    "unknown kind": ([header(), {"kind": "what"}], "line 2: damaged"),
    "a key less": ([header(), {"kind": "step"}], "damaged: step without optimizer"),
    "another version": ([header(version=2)], "version = 2: must be 1"),
    "no header": ([step(0)], "line 1: not the header"),
    "of another rank": ([header(1, 2)], "line 1: not the header .* of rank 0"),
    "a rank too many": ([header(0, 0)], "rank 0 is none of a run"),
    "twice the header": ([header(), header()], "line 2: .*: no place for 'recording'"),
    "a step twice": (
        [header(), step(3), step(3)],
        "line 3: .*: no place for 'step' for step 3",
    ),
    "on after the end": ([header(), row_of("end"), step(0)], "line 3: .* for 'step'"),
    "two ends": ([header(), row_of("end"), row_of("end")], "line 3: .* for 'end'"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_one_line_that_says_where(case: str, tmp_path: Path) -> None:
    rows, line = DAMAGED[case]
    parts = [r if isinstance(r, bytes) else r.encode() for r in map(as_text, rows)]
    path_of_rank(tmp_path, 0).write_bytes(b"".join(part + b"\n" for part in parts))
    with pytest.raises(UserError, match=line) as caught:
        read_recording(tmp_path)
    assert "\n" not in str(caught.value)


def as_text(row: Any) -> Any:
    return row if isinstance(row, bytes | str) else json.dumps(row)


def test_ranks_of_unlike_runs_are_told(tmp_path: Path) -> None:
    write(tmp_path, header(0, 2))
    write(tmp_path, header(1, 2, every=5), rank=1)
    with pytest.raises(UserError, match="every is 10 on rank 0, 5 on rank 1"):
        read_recording(tmp_path)
