"""Every command in README.md and the docs is run by a test, or it says why not."""

import ast
import re
from collections.abc import Iterator

import pytest
from documented_commands import NOT_RUN, RUN_BY, reason
from pages import Block, blocks, pages_of
from project import ROOT

PAGES = ["README.md", "CONTRIBUTING.md", *pages_of("docs", "examples", "launch")]


def typed(block: Block) -> Iterator[str]:
    """The commands of a block, whichever environment they are taken from."""
    if block.language == "sh":
        found = block.commands
    else:
        found = block.shown_commands
        if block.language == "text":
            found += re.findall(r"^minitrain .+$", block.text, re.MULTILINE)
    yield from (re.sub(r"(?<!source )\.venv/bin/", "", line) for line in found)


def commands() -> dict[str, str]:
    """Every command that is shown somewhere -> a page that shows it."""
    return {
        command: page
        for page in PAGES
        for block in blocks((ROOT / page).read_text(encoding="utf-8"))
        for command in typed(block)
    }


def section(page: str, heading: str) -> str:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert f"\n## {heading}\n" in text
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize(
    ("heading", "at_most"),
    [("Change something and look", 3), ("Your own text", 3), ("Your own model", 4)],
)
def test_readme_needs_few_commands_after_the_clone(heading: str, at_most: int) -> None:
    """The first ``make`` is one of them, and gives the first report."""
    install, *_ = blocks(section("README.md", "Three commands"))
    assert install.commands[0] == "make"
    typed_there = [
        b for b in blocks(section("README.md", heading)) if b.language == "sh"
    ]
    assert 0 < len(typed_there[0].commands) <= at_most - 1


@pytest.mark.parametrize(("page", "at_most"), [("own-text", 3), ("own-model", 4)])
def test_page_of_ones_own_needs_few_commands(page: str, at_most: int) -> None:
    """All that are on it, from the clone on."""
    text = (ROOT / f"docs/how-to/{page}.md").read_text(encoding="utf-8")
    commands = [c for block in blocks(text) for c in typed(block)]
    assert 0 < len(commands) <= at_most
    # it installs before anything that needs it
    made = next(i for i, one in enumerate(commands) if one.startswith("make"))
    assert not any(one.startswith(("dvc", "minitrain")) for one in commands[:made])


def test_every_command_has_a_test_or_a_reason() -> None:
    found = commands()
    others = {c: page for c, page in found.items() if c not in RUN_BY}
    assert {c: page for c, page in others.items() if reason(c) is None} == {}
    assert sorted(RUN_BY.keys() - found.keys()) == []
    assert {*NOT_RUN.values()} == {*map(reason, others)}
    for test in {*RUN_BY.values()}:
        path, _, name = test.partition("::")
        tree = ast.parse((ROOT / path).read_text())
        names = {f.name for f in tree.body if isinstance(f, ast.FunctionDef)}
        assert name in names, test
    for why in NOT_RUN.values():
        for path in re.findall(r"tests/[\w/]+(?:\.py)?|\.ci/\w+", why):
            assert (ROOT / path).exists(), why
