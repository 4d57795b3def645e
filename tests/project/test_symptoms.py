"""Commands on the pages of docs/symptoms: outputs contain the lines shown there."""

import re
from pathlib import Path

import pytest
from pages import blocks, pages_of
from project import ROOT, run_in

PAGES = [p for p in pages_of("docs/symptoms") if not p.endswith("README.md")]
# not times, nor which of their words noise decides
KEY = re.compile(
    r"minitrain: (note|alarm|see)|alarm|(same|equal|different|see)\b|  rank \d: "
    r"|rank \d is"
)
pytestmark = [pytest.mark.timeout(900), pytest.mark.thorough]


def shape(line: str) -> str:
    """``line`` with every number as ``#``."""
    return re.sub(r"\d[\d,]*(\.\d+)?(e-?\d+)?", "#", line)


def shown(page: str) -> list[tuple[str, list[str]]]:
    """The commands of a page, each with the lines of its output."""
    (block,) = (b for b in blocks((ROOT / page).read_text()) if b.language == "text")
    pieces = re.split(r"^\$ (.+)\n", block.text, flags=re.MULTILINE)[1:]
    return [
        (command, output.splitlines())
        for command, output in zip(pieces[::2], pieces[1::2], strict=True)
    ]


@pytest.mark.parametrize("page", PAGES)
def test_output_is_the_one_on_the_page(page: str, tmp_path: Path) -> None:
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    compared = 0
    for command, lines in shown(page):
        done = run_in(tmp_path, *command.split(), TMPDIR=str(tmp_path))
        output = done.stdout + done.stderr
        found = {*map(shape, output.splitlines())}
        expected = [shape(line) for line in lines if KEY.match(line)]
        assert [line for line in expected if line not in found] == [], output
        compared += len(expected)
    assert compared > 0
