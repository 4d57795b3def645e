"""Only regular files of a bounded size are read."""

import os
from pathlib import Path

from one_line import refusal

from minitrain.cli.main import run
from minitrain.compare.states import read_state
from minitrain.core.regular import require_regular
from minitrain.recording.format import read_recording


def test_pipes_devices_and_large_files_are_refused(tmp_path: Path) -> None:
    pipe, large = tmp_path / "pipe.pt", tmp_path / "large"
    os.mkfifo(pipe)
    large.write_bytes(b"12345")
    for path in (pipe, Path("/dev/zero")):
        assert "is no regular file" in refusal(require_regular, path)
    assert "must be at most 4" in refusal(require_regular, large, 4)
    assert require_regular(large, 5) == large


def test_verify_waits_for_no_pipe_and_reads_no_device(tmp_path: Path) -> None:
    """In the place of each kind of file: one line."""
    for name in ("a.pt", "a.safetensors", "r/rank-0.jsonl", "i/m.index.json"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        os.mkfifo(path)
        given = path.parent if path.parent != tmp_path else path
        assert "is no regular file" in refusal(run, ["verify", *[str(given)] * 2])
    assert "is no regular file" in refusal(run, ["verify", *["/dev/zero"] * 2])


def test_files_that_are_nested_without_end(tmp_path: Path) -> None:
    deep = "[" * 100_000
    index, recording = tmp_path / "m.index.json", tmp_path / "rank-0.jsonl"
    index.write_text(deep)
    recording.write_text(deep + "\n")
    assert "not an index of shards" in refusal(read_state, index)
    assert "damaged (RecursionError" in refusal(read_recording, tmp_path)
