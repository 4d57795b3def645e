"""The result in README.md, generated from published files."""

from pathlib import Path
from typing import Any

import pytest
from report_inputs import facts, ladder_of, on_two_hosts, provenance_of, published

from minitrain.report.published import result_block
from minitrain.report.render import write_marked

MARKED = "T\n<!-- result -->\nold\n<!-- /result -->\n"


def block(folder: Path, **changes: Any) -> str:
    ladders = {f"gloo-{w}": ladder_of(w) | {"verdict": "proven"} for w in (1, 2)}
    return result_block(
        published(folder, facts([1, 2], equivalence=ladders, **changes))
    )


def test_numbers_are_those_of_the_files(tmp_path: Path) -> None:
    made = block(tmp_path)
    assert "| one process | 1 | 1 | 9,998 | - | - |" in made
    assert "| 2 processes, DDP | 2 | 1 | 16,417 | proven | 12.5 ms |" in made
    assert (
        "| 2 processes, no communication (the ceiling) | 2 | 1 | 19,118 | - | - |"
        in made
    )
    assert "A/A duplicate" not in made
    assert "2026-01-02: Example CPU, 2 cores" in made
    line = " ".join(made.split())
    assert "Identical arms (3 pairs) differed by up to 1.6 %: smaller diff" in line
    assert "with the whole batch is 3.1e-06: within tolerance.*" in line
    assert max(map(len, made.splitlines()[-6:])) <= 100


def test_a_busy_machine_has_no_speeds(tmp_path: Path) -> None:
    busy = provenance_of(1, load={"others_share": 0.4, "steal_share": 0.0})
    made = block(tmp_path, baseline_provenance=busy)
    assert "the machine was busy: other processes used 40 % of the CPU." in made
    assert "| 2 | 1 | not measured (machine busy) | proven | 12.5 ms |" in made
    assert "16,417" not in made


def test_two_hosts_have_no_speed_of_one_beside_them(tmp_path: Path) -> None:
    f = on_two_hosts(facts([1, 2]), "gloo-2")
    made = result_block(published(tmp_path, f))
    assert "| 16,417 | undecided (2 hosts) | - |" in made
    assert "Speeds are of one host; gloo-2 ran on 2, so only its verdict" in made


@pytest.mark.parametrize(
    ("text", "after"),
    [
        (MARKED, MARKED.replace("old", "new")),
        ("# No marks\n", "# No marks\n"),
        ("<!-- result -->\nnever closed\n", "<!-- result -->\nnever closed\n"),
        (None, None),
    ],
)
def test_text_goes_between_its_marks(
    tmp_path: Path, text: str | None, after: str | None
) -> None:
    path = tmp_path / "README.md"
    if text is not None:
        path.write_text(text)
    write_marked(path, "result", "new\n")
    assert (path.read_text() if path.exists() else None) == after
