import json
import re
from pathlib import Path
from typing import Any

import pytest
from report_inputs import (
    facts,
    ladder_of,
    on_two_hosts,
    proven,
    provenance_of,
    published,
    rung,
)

from minitrain.cli.main import run
from minitrain.core.errors import UserError
from minitrain.core.files import write_json
from minitrain.report.breach import refuse
from minitrain.report.facts import Facts
from minitrain.report.published import result_block, summary_lines
from minitrain.report.render import write_marked


def measured(world_sizes: list[int], **changes: Any) -> Facts:
    given = {"noise": 0.001, "equivalence": proven(world_sizes)} | changes
    return facts(world_sizes, **given)


def test_line_of_runs_with_different_verdicts(tmp_path: Path) -> None:
    alike = measured([1, 2, 4])
    mixed = proven([1, 2, 4])
    mixed["gloo-4"]["verdict"] = "undecided"
    for found, start in (
        (alike, "all 3 runs: proven: "),
        (measured([1, 2, 4], equivalence=mixed), "gloo-4 undecided; gloo-1, gloo-2 pr"),
    ):
        _, (bits, *_) = summary_lines(published(tmp_path, found))
        assert bits.startswith(f"Bits   {start}")


def test_breach_is_said_in_the_place_of_the_result(tmp_path: Path) -> None:
    published(tmp_path, measured([1, 2]))
    detail = "tensor blocks.0.attention.qkv.weight, element 3: 0x1p-3 and 0x1p-2" * 2
    broken = {"gloo-2": ladder_of(2) | {"ranks": rung("breach", detail=detail)}}
    refuse(broken, tmp_path)
    ok, lines = summary_lines(tmp_path)
    assert not ok
    assert lines[0].startswith("Breach: gloo-2: ranks: tensor blocks.0.")
    assert max(map(len, lines[:-1])) <= 80
    assert lines[-1] == f"No result was published; see {tmp_path / 'report.md'}."


def test_file_that_is_missing_or_of_an_older_version_is_named(tmp_path: Path) -> None:
    path = published(tmp_path, measured([1, 2])) / "manifest.json"
    timing = tmp_path / "timing.json"
    for file, key in ((timing, "machine_busy"), (path, "over_all_cores_verdict")):
        older = re.sub(f'"{key}"', '"other"', file.read_text())
        file.write_text(older)
        with pytest.raises(UserError, match=f"{file.name}: damaged, or not of this ve"):
            summary_lines(tmp_path)
    path.unlink()
    with pytest.raises(OSError, match=re.escape("manifest.json")):
        summary_lines(tmp_path)


def test_command(tmp_path: Path, monkeypatch, capsys) -> None:
    (tmp_path / "metrics").mkdir()
    published(tmp_path / "metrics", measured([2]))
    monkeypatch.chdir(tmp_path)
    assert run(["summary"]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[-1] == "Report metrics/report.html"
    assert run(["summary", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary == {"ok": True, "lines": text.splitlines()}
    write_json(tmp_path / "metrics/summary.json", {"breach": "gloo-2: x"})
    assert run(["summary"]) == 1
    assert capsys.readouterr().out.startswith("Breach: gloo-2: x.\n")


def test_numbers_are_those_of_the_files(tmp_path: Path) -> None:
    f = measured([1, 2], noise=0.01)
    made = result_block(published(tmp_path, f))
    assert "| one process | 1 | 1 | 9,998 | - | - |" in made
    assert "| 2 processes, DDP | 2 | 1 | 16,417 | proven | 12.5 ms |" in made
    assert "no communication (the ceiling) | 2 | 1 | 19,118 | - | - |" in made
    assert "A/A duplicate" not in made
    assert "2026-01-02: Example CPU, 2 cores" in made
    line = " ".join(made.split())
    assert "of identical arms (3 pairs) reach up to 1.6 % from equal speed" in line
    assert "with the whole batch is 3.1e-06: within tolerance.*" in line
    assert max(map(len, made.splitlines()[-6:])) <= 100


def test_a_busy_machine_has_no_speeds(tmp_path: Path) -> None:
    busy = provenance_of(1, load={"others_share": 0.4, "steal_share": 0.0})
    f = measured([1, 2], baseline_provenance=busy)
    made = result_block(published(tmp_path, f))
    assert "the machine was busy: other processes used 40 % of the CPU." in made
    assert "| 2 | 1 | not measured (machine busy) | proven | 12.5 ms |" in made
    assert "16,417" not in made


def test_two_hosts_have_no_speed_of_one_beside_them(tmp_path: Path) -> None:
    f = on_two_hosts(facts([1, 2]), "gloo-2")
    made = result_block(published(tmp_path, f))
    assert "| 16,417 | undecided (2 hosts) | - |" in made
    assert "Speeds are of one host; gloo-2 ran on 2, so only its verdict" in made


def test_text_goes_between_its_marks(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    write_marked(path, "result", "new\n")
    assert not path.exists()
    unclosed = "<!-- result -->\nnever closed\n"
    whole = "a\n<!-- result -->\n{}\n<!-- /result -->b"
    for text, after in ((whole.format("old"), whole.format("new")), (unclosed,) * 2):
        path.write_text(text)
        write_marked(path, "result", "new\n")
        assert path.read_text() == after
