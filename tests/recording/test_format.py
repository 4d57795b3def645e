"""Files of a recording: written line by line, read as far as a kill left them."""

import json
from pathlib import Path
from typing import Any

import pytest
from one_line import refusal
from recorded_rows import headers, own_of, rows_of

from minitrain.core.errors import UserError
from minitrain.recording.fields import FIELDS, MAY_HAVE
from minitrain.recording.format import (
    Row,
    Writer,
    is_recording,
    line_of,
    path_of_rank,
    read_recording,
)

HEADER, STEP = headers(1)[0], rows_of(0, own_of(0, 1))[0]
ABOUT = {"shape": [2, 3], "dtype": "float32", "trained": True}
PRINT = {"hash": "0", "norm": 1.0, "sketch": [0.5] * 8}
ALARM = {"rule": "mean", "step": 0, "ranks": [1], "tensor": "", "line": ""}
END = {"steps": {"0": 1}, "forwards": 1}
ROWS: dict[str, Row] = {"recording": HEADER, "step": STEP, "end": END}
ROWS |= {"alarm": ALARM, "note": ALARM}


def row_of(kind: str, **values: Any) -> Row:
    return ROWS[kind] | {"kind": kind} | values


def header(rank: int = 0, world_size: int = 1, **values: Any) -> Row:
    return row_of("recording", rank=rank, world_size=world_size, **values)


def step(number: int, optimizer: int = 0, **values: Any) -> Row:
    return row_of("step", step=number, optimizer=optimizer, **values)


def write(folder: Path, *rows: Row, rank: int = 0) -> Path:
    writer = Writer(folder, rank)
    for row in rows:
        writer.append(line_of(row))
    writer.close()
    writer.close()
    return path_of_rank(folder, rank)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    alarm, end = row_of("alarm", line="ä"), row_of("end", steps={"0": 2})
    entry = PRINT | {"norm": float("nan"), "sketch": [float("inf")] * 8}
    last = step(1, gradients={"w": entry}, loss=float("nan"))
    for rank in (0, 1):
        write(tmp_path, header(rank, 3), step(0), alarm, last, end, alarm, rank=rank)
    path_of_rank(tmp_path, 2).write_text('{"kind": "recor')
    recording = read_recording(tmp_path)
    assert (recording.world_size, recording.missing) == (3, [2])
    one = recording.ranks[1]
    assert one.header["rank"] == 1
    assert list(one.steps) == [(0, 0), (0, 1)]
    assert str(one.steps[0, 1]["loss"]) == "nan"
    assert [alarm["line"] for alarm in one.alarms] == ["ä", "ä"]
    assert one.end == end


def test_cut_anywhere_all_whole_rows_are_read(tmp_path: Path) -> None:
    writer = Writer(tmp_path, 0)
    for row in (header(), step(0), step(1) | {"inputs": [["ä"]]}):
        writer.append(line_of(row))
    # each row is there at once
    whole = path_of_rank(tmp_path, 0).read_bytes()
    writer.close()
    starts = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for length in {*range(0, len(whole), 7), *starts, starts[0] - 1}:
        path_of_rank(tmp_path, 0).write_bytes(whole[:length])
        rows = sum(start <= length for start in starts)
        if rows:
            recording = read_recording(tmp_path)
            assert len(recording.ranks[0].steps) == rows - 1
            continue
        with pytest.raises(UserError, match="nothing recorded"):
            read_recording(tmp_path)


def test_folders_without_a_recording(tmp_path: Path) -> None:
    (tmp_path / "rank-x.jsonl").touch()
    (tmp_path / "rank-00.jsonl").touch()
    for folder in (tmp_path, tmp_path / "none", tmp_path / "rank-x.jsonl"):
        assert not is_recording(folder)
        with pytest.raises(UserError, match=r"no recording|none: does not exist"):
            read_recording(folder)
    path_of_rank(tmp_path, 0).mkdir()
    with pytest.raises(UserError, match=r"rank-0\.jsonl: cannot be read"):
        read_recording(tmp_path)


DAMAGED: dict[str, tuple[list[Any], str]] = {
    "no json": (["{", header()], "line 1: damaged"),
    "no object": ([header(), [1]], "line 2: damaged"),
    "no text": ([header(), b"\xff\xfe"], "line 2: damaged"),
    "no kind": ([{}], "line 1: damaged"),
    "a list as kind": ([header(), {"kind": [1]}], "line 2: damaged .TypeError"),
    "unknown kind": ([header(), {"kind": "what"}], "line 2: damaged"),
    "another version": ([header(version=1)], "version = 1: must be 3"),
    "no header": ([step(0)], "line 1: not the header"),
    "of another rank": ([header(1, 2)], "line 1: not the header .* of rank 0"),
    "twice the header": ([header(), header()], "damaged: a header, a step or the end"),
    "a step twice": ([header(), step(3), step(3)], "damaged: a header, a step"),
    "two ends": ([header(), row_of("end"), row_of("end")], "damaged: a header, a step"),
    "nested deeply": ([header(), b"[" * 100_000], "line 2: damaged .RecursionError"),
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


UNLIKE = [
    (header(1, 2, every=5), "every is 1 on rank 0, 5 on rank 1"),
    (header(1, 1), "world_size is 2 on rank 0, 1 on rank 1"),
]


def test_ranks_of_unlike_runs_are_told(tmp_path: Path) -> None:
    for number, (other, line) in enumerate(UNLIKE):
        write(tmp_path / str(number), header(0, 2))
        write(tmp_path / str(number), other, rank=1)
        with pytest.raises(UserError, match=line):
            read_recording(tmp_path / str(number))
    write(tmp_path, header(1), rank=1)
    with pytest.raises(UserError, match="rank 1 is none of a run with world_size 1"):
        read_recording(tmp_path)


def damage(folder: Path, kind: str, row: Row) -> str:
    """What is said of a row, after the header if it is none."""
    rows = [row] if kind == "recording" else [header(), row]
    text = "".join(json.dumps(one) + "\n" for one in rows)
    path_of_rank(folder, 0).write_text(text)
    return refusal(read_recording, folder)


SHORT = PRINT | {"sketch": [0.5] * 7}
WRONG: dict[str, dict[str, list[Any]]] = {
    "recording": {
        "rank": [-1, "0", None],
        "world_size": ["2", 0, 10**12, 2.0, True],
        "every": [0, 10**400, "\x1b[2J\n" * 999],
        "twin": [0],
        "bins": [4, "8"],
        "parameters": [[], {"w": {}}, {"w": ABOUT | {"shape": [-1]}}],
        "start": [None, {"w": 0}],
    },
    "step": {
        "step": [-1, "0", 0.5],
        "inputs": [[0], [[0]], {}],
        "loss": ["1.0"],
        "lr": [0.1, ["0.1"], [None]],
        "syncs": [None, [1]],
        "group": [0, "2"],
        "own": [{"w": [0.5] * 7}, {"w": ["a"] * 8}, {"w": 0.5}],
        "gradients": [
            {"w": SHORT},
            {"w": {"hash": "0"}},
            {"w": PRINT | {"norm": -1.0}},
        ],
        "buffers": [{"w": {}}, {"w": {"hash": "0", "norm": 1.0}}],
        "groups": [[{"parameters": ["w"], "settings": {"betas": None}}]],
        # keys that few have
        **{key: [None] for key in MAY_HAVE["step"]},
    },
    "alarm": {"step": ["0"], "ranks": [["0"], 1], "line": [None]},
    "end": {"steps": [{"0": "2"}, [1], {"0": -1}], "also": [["w"]]},
}


@pytest.mark.parametrize("kind", FIELDS)
def test_each_key_is_there_and_of_its_type(tmp_path: Path, kind: str) -> None:
    assert {*ROWS[kind]} - {"kind"} == {*FIELDS[kind]}
    for key in FIELDS[kind]:
        row = row_of(kind)
        del row[key]
        line = f"damaged: {kind} without {key}"
        assert damage(tmp_path, kind, row).endswith(line)
    for key, values in WRONG.get(kind, {}).items():
        for value in values:
            line = damage(tmp_path, kind, row_of(kind, **{key: value}))
            assert f"damaged: {kind} with {key} = " in line, value
            assert "\x1b" not in line
