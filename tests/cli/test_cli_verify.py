"""``minitrain verify``: words, JSON and exit codes."""

import json
import sys
from pathlib import Path

import pytest
import torch
from commands import output_of
from one_line import refusal
from safetensors.torch import save_file

from minitrain.cli.main import main, run
from minitrain.cli.verify import in_words
from minitrain.compare.state_diff import compare_folders, compare_states
from minitrain.compare.states import State


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """Two states that differ in one bit; the second has a prefix."""
    w = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    other = w.clone()
    other[1, 0] = torch.nextafter(other[1, 0], torch.tensor(9.0))
    torch.save({"v": torch.ones(2), "w": w}, tmp_path / "a.pt")
    torch.save({"module.v": torch.ones(2), "module.w": other}, tmp_path / "b.pt")
    return str(tmp_path / "a.pt"), str(tmp_path / "b.pt")


def test_one_bit(files: tuple[str, str]) -> None:
    assert output_of("verify", files[0], files[0]) == (
        0,
        "equal: 2 tensors, every bit\n",
    )
    assert output_of("verify", *files) == (
        1,
        "different: 1 of 2 tensors, 1 element in all\n"
        "first difference: w[1, 0]\n"
        "  A: 3 (0x40400000)\n"
        "  B: 3.00000024 (0x40400001)\n"
        "max ULP: 1\n"
        "max |A - B|: 2.38419e-07 in w\n"
        "names: without the words of wrappers in names\n",
    )
    code, text = output_of("verify", *files, "--json")
    found = json.loads(text)
    assert (code, found["equal"], found["max_ulp"]) == (1, False, 1)
    assert found["first"]["index"] == [1, 0]


def test_mistakes_are_one_line(tmp_path: Path, monkeypatch, capsys) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    for a, b, line in (
        ("empty", "emty", "emty: does not exist"),
        ("emty", "nowhere", "emty: does not exist (did you mean empty?)"),
        ("empty", "empty", "empty: no training run, and holds no state"),
        (".", "nowhere", "nowhere: does not exist"),
        (__file__, ".", f".: is a folder; {__file__} is a file"),
    ):
        assert refusal(run, ["verify", a, b]).startswith(line)
    # and as users see it
    monkeypatch.setattr(sys, "argv", ["minitrain", "verify", *["nowhere.pt"] * 2])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (only,) = printed.err.splitlines()
    assert only.startswith("error: nowhere.pt: does not exist")


def test_first_line_names_what_differs_where_no_tensor_does() -> None:
    mine = State({"a": torch.zeros(1)}, {"step": 3})
    equal = "; equal is what both have: 1 tensor"
    for sizes, step, line in (
        ({"a": 1}, 4, f"only values{equal}"),
        ({"a": 2}, 3, "only shapes or types; no tensor was compared"),
        ({"b": 1}, 3, "only names; no tensor was compared"),
        ({"a": 1, "b": 1}, 4, f"only names and values{equal}"),
    ):
        tensors = {name: torch.zeros(size) for name, size in sizes.items()}
        found = compare_states(mine, State(tensors, {"step": step}))
        assert in_words(found).splitlines()[0] == f"different: {line}"
    # the first five of many names
    many = State({name: torch.zeros(1) for name in "abcdefg"}, {"step": 3})
    lines = in_words(compare_states(many, mine)).splitlines()
    assert lines[1:] == ["only in A: b, c, d, e, f and 1 more"]


def test_what_is_no_difference_is_said(tmp_path: Path) -> None:
    w = torch.tensor([1.0, float("nan")])
    torch.save({"w": w, "head": w, "step": 3}, tmp_path / "a.pt")
    torch.save({"w": w, "step": 3}, tmp_path / "b.pt")
    assert output_of("verify", tmp_path / "a.pt", tmp_path / "b.pt") == (
        0,
        "equal: 1 tensor and 1 value, every bit\n"
        "head: another name of w, which only one of them has\n",
    )


def test_damaged_state_is_compared_by_its_bytes(tmp_path: Path) -> None:
    for side in "ab":
        (tmp_path / side).mkdir()
        (tmp_path / side / "notes.txt").write_text(side)
        for name in ("model.pt", "other.pt"):
            torch.save({"w": torch.ones(1)}, tmp_path / side / name)
    cut = tmp_path / "b/model.pt"
    cut.write_bytes(cut.read_bytes()[:-100])
    found = compare_folders(tmp_path / "a", tmp_path / "b")
    assert found.files == {"model.pt": False, "notes.txt": False}
    assert [*found.states] == ["other.pt"]
    assert not found.equal


def test_links_of_folders_lead_to_an_end(tmp_path: Path) -> None:
    """In a circle a folder is there once; one that is elsewhere is compared."""
    outside = tmp_path / "outside"
    for folder in (outside, *(tmp_path / side / "step" for side in "ab")):
        folder.mkdir(parents=True)
        torch.save({"w": torch.ones(1)}, folder / "state.pt")
    links = {"best": ".", "latest": "step", "other": outside}
    for folder, name, to in (
        (outside, "self", "."),
        *((tmp_path / side, *link) for side in "ab" for link in links.items()),
    ):
        (folder / name).symlink_to(to)
    code, text = output_of("verify", tmp_path / "a", tmp_path / "b")
    first, *states = [line.partition(":")[0] for line in text.splitlines()]
    folders = ("latest", "other", "step")
    assert (code, first) == (0, "equal")
    assert states == [f"{folder}/state.pt" for folder in folders]
    # where they lead is compared
    torch.save({"w": torch.zeros(1)}, tmp_path / "b/step/state.pt")
    (tmp_path / "b/latest").unlink()
    (tmp_path / "b/latest").symlink_to(outside)
    code, text = output_of("verify", tmp_path / "a", tmp_path / "b")
    lines = [line for line in text.splitlines() if "/state.pt: different" in line]
    assert (code, [line.partition("/")[0] for line in lines]) == (1, ["step"])


def test_nothing_is_not_equal(tmp_path: Path) -> None:
    path = tmp_path / "empty.safetensors"
    save_file({}, path)
    line = refusal(run, ["verify", str(path), str(path)])
    assert line == f"{path}: holds nothing to compare"
