"""The docs as a site: every page has its place in the menu, and every link leads
somewhere. That it can be built is tried where `make docs` has installed what builds it.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pages import blocks
from project import ROOT, environment
from ruamel.yaml import YAML

MKDOCS = ROOT / ".venv-docs/bin/mkdocs"
SETTINGS: dict[str, Any] = YAML(typ="safe").load((ROOT / "mkdocs.yml").read_text())


def listed(menu: Any) -> Iterator[str]:
    """The pages of a menu, in order."""
    if isinstance(menu, str):
        yield menu
    for one in menu if isinstance(menu, list) else []:
        yield from listed([*one.values()] if isinstance(one, dict) else one)


def test_menu_has_every_page_of_the_docs_once() -> None:
    pages = [p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed(SETTINGS["nav"])) == sorted(["README.md", *pages])


@pytest.mark.slow
def test_site_is_built_and_asks_nobody_for_anything(tmp_path: Path) -> None:
    if not MKDOCS.exists():
        pytest.skip("no .venv-docs; make test makes it")
    done = subprocess.run(
        [MKDOCS, "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    page = "docs/course/01-all-reduce-for-each-parameter/index.html"
    text = (tmp_path / "site" / page).read_text()
    # what is folded is Markdown, too
    assert "<summary>Solution</summary>" in text
    assert "gloo-2 calls a step: more" in text
    assert "```" not in text
    # and so is what pages link to
    assert (tmp_path / "site/minitrain/train/loop.py").is_file()
    tags = re.findall(r"<(?:script|link|img)\b[^>]*>", text)
    assert [tag for tag in tags if re.search(r'="(https?:)?//', tag)] == []


SOURCES = [
    path
    for pattern in ("minitrain/**/*.[pm][yd]", "stages/*", "launch/**/*", "Makefile")
    for path in sorted(ROOT.glob(pattern))
    if path.is_file() and path.suffix != ".pyc"
]


def test_lines_of_the_troubleshooting_are_those_of_the_code() -> None:
    """In quotes; those of other programs have the name of it behind them."""
    page = (ROOT / "docs/troubleshooting.md").read_text()
    cells = re.findall(r"^\| ([^|]+) \|", page, re.MULTILINE)
    of_ours = re.compile(r'"([^"]+)"(?! \((?:DVC|pip)\))')
    quoted = [line for cell in cells for line in of_ours.findall(cell)]
    assert len(quoted) > 12
    code = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES)
    assert [line for line in quoted if line not in code] == []
    assert blocks(page)
