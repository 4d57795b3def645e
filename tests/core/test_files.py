import errno
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from one_line import refusal
from project import PARAMS_FILE

from minitrain.check.inputs import find, text_batches
from minitrain.cli.main import run
from minitrain.compare.states import read_state
from minitrain.core.errors import UserError
from minitrain.core.files import (
    atomic_path,
    nearest_file,
    read_csv,
    read_json,
    read_jsonl,
    sha256_file,
    write_json,
    write_jsonl,
)
from minitrain.core.params import load_params
from minitrain.data.text import read_corpus
from minitrain.grammar.verbs import load_verbs
from minitrain.recording.format import read_recording
from minitrain.recording.times import read_times
from minitrain.train.checkpoint import read_manifest
from minitrain.train.step_record import load_tensors


class Interrupted(Exception):
    """Any error while a file is being written."""


def contents(folder: Path) -> dict[str, str]:
    # hidden files as well
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def write(path: Path, text: str, *, as_folder: bool, fail: bool = False) -> None:
    with atomic_path(path) as temporary:
        if as_folder:
            temporary.mkdir()
        file = temporary / "inside" if as_folder else temporary
        file.write_text(text)
        if fail:
            raise Interrupted


@pytest.mark.parametrize("as_folder", [False, True])
def test_all_or_nothing_is_there(tmp_path: Path, as_folder: bool) -> None:
    # parents are created
    path = tmp_path / "b" / "c"
    found = "b/c/inside" if as_folder else "b/c"
    with pytest.raises(Interrupted):
        write(path, "half", as_folder=as_folder, fail=True)
    assert contents(tmp_path) == {}
    write(path, "old", as_folder=as_folder)
    assert contents(tmp_path) == {found: "old"}
    with pytest.raises(FileNotFoundError), atomic_path(path):
        # a body that writes nothing keeps the old file
        pass
    if as_folder:
        # removed with its content
        (path / "more").touch()
    before = contents(tmp_path)
    with pytest.raises(Interrupted):
        write(path, "half", as_folder=as_folder, fail=True)
    assert contents(tmp_path) == before
    write(path, "new", as_folder=as_folder)
    assert contents(tmp_path) == {found: "new"}


def test_folder_that_cannot_be_replaced_stays(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "c"
    write(path, "old", as_folder=True)
    replace = os.replace

    def failing(source: Path, target: Path) -> None:
        if (source / "inside").read_text() == "new":
            raise OSError(errno.EIO, "Input/output error", str(source / "inside"))
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError, match="Input/output error") as raised:
        write(path, "new", as_folder=True)
    assert raised.value.filename == str(path)
    assert contents(tmp_path) == {"c/inside": "old"}


@pytest.mark.parametrize("write", [write_json, write_jsonl])
def test_json_without_a_number_for_it_is_refused(tmp_path: Path, write: Any) -> None:
    (tmp_path / "a.json").write_text("old")
    with pytest.raises(ValueError, match="not JSON compliant"):
        write(tmp_path / "a.json", [{"fine": 1.5}, {"loss": math.nan}])
    assert contents(tmp_path) == {"a.json": "old"}


def test_json_is_readable_text_and_jsonl_an_object_a_line(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"naïve": [1, None]})
    expected = '{\n  "naïve": [\n    1,\n    null\n  ]\n}\n'
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == expected
    assert read_json(tmp_path / "a.json") == {"naïve": [1, None]}
    rows = [{"text": "two\nlines\u2028"}, {"text": "naïve"}]
    write_jsonl(tmp_path / "a.jsonl", iter(rows))
    assert (tmp_path / "a.jsonl").read_bytes().count(b"\n") == 2
    assert read_jsonl(tmp_path / "a.jsonl") == rows


# every function that reads a file of the project
READERS: list[Callable[[Path], object]] = [
    read_json,
    read_jsonl,
    read_csv,
    sha256_file,
    load_params,
    load_verbs,
    load_tensors,
    lambda path: text_batches(path, 1, 1),
    lambda path: [*read_corpus(path)],
    lambda path: find(f"{path}:build", "m"),
]


def test_nothing_but_a_regular_file_is_read(tmp_path: Path) -> None:
    """A pipe would block, a device has no end; a pipe in a checkpoint is damage."""
    pipe = tmp_path / "pipe.py"
    os.mkfifo(pipe)
    refused = "regular file|no such file|No module named"
    for path in (pipe, Path("/dev/zero")):
        for number, read in enumerate(READERS):
            assert re.search(refused, refusal(read, path)), number
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(UserError, match="damaged"):
        read_manifest(tmp_path)
    for name in ("rank-0.jsonl", "times-0.csv"):
        os.mkfifo(tmp_path / name)
    assert "is not a regular file" in refusal(read_times, tmp_path)


def test_what_is_damaged_is_one_line(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    rows = "run,ms,equal\ngloo-1,1.5,True\ngloo-2,,False\ngloo-3,2,\n"
    table.write_text(rows)
    assert [*read_csv(table, "ms")["run"]] == ["gloo-1", "gloo-2", "gloo-3"]
    assert "damaged" in refusal(read_csv, table, "seconds")
    # truncated within a line
    table.write_text(rows.removesuffix(",\n"))
    assert "its end is missing" in refusal(read_csv, table)
    deep = "[" * 5_000 + "\n"
    file, recording = tmp_path / "m.index.json", tmp_path / "rank-0.jsonl"
    file.write_text(deep)
    recording.write_text(deep)
    for read in (read_json, read_jsonl, load_params):
        line = refusal(read, file)
        assert "m.index.json" in line
        assert len(line) < 400
    assert "not an index of shards" in refusal(read_state, file)
    assert "damaged (RecursionError" in refusal(read_recording, tmp_path)


@pytest.mark.slow
def test_what_nests_without_end_is_one_line(tmp_path: Path) -> None:
    # nested aliases: a short file that expands to billions of numbers
    nested = ["&a0 [1, 2]"]
    nested += [f"&a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    lists = "".join(f"\n  - {line}" for line in nested)
    text, aliases = PARAMS_FILE.read_text(), tmp_path / "aliases.yaml"
    for key in ("sync", "num_sentences"):
        aliases.write_text(re.sub(rf"(\n  {key}:).*", rf"\1{lists}", text, count=1))
        assert f"{key} = [[1, 2], [[" in refusal(load_params, aliases)


def test_verify_waits_for_no_pipe_and_reads_no_device(tmp_path: Path) -> None:
    # one for each kind of file
    for name in ("a.pt", "a.safetensors", "r/rank-0.jsonl", "i/m.index.json"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        os.mkfifo(path)
        given = path.parent if path.parent != tmp_path else path
        assert "is not a regular file" in refusal(run, ["verify", *[str(given)] * 2])


def test_a_file_is_sought_beside_the_one_that_is_missing(tmp_path: Path) -> None:
    there, missing = tmp_path / "gloo-2", tmp_path / "glo-2"
    there.mkdir()
    assert nearest_file(missing) == f" (did you mean {there}?)"
    # excluded, similar only by its folder, and in a missing folder
    assert nearest_file(missing, but=[there]) == ""
    assert nearest_file(tmp_path / "other") == ""
    assert nearest_file(tmp_path / "nowhere/gloo-2") == ""
