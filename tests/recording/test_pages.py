"""Alarms and causes name pages of docs/ that exist."""

import re
from pathlib import Path

import pytest
from project import ROOT
from recorded import record

import minitrain
from minitrain.compare.difference import PAGES as OF_CAUSES
from minitrain.recording.alarm import PAGES, RULES_PAGE, Alarm, page_on
from minitrain.recording.format import line_of
from minitrain.recording.rank_exchange import RankExchange

SOURCES = [path.read_text() for path in (ROOT / "minitrain/recording").glob("*.py")]
# the rule is the first text of a call
CALL = re.compile(r'\b(?:alarm|note|Alarm)\(\s*(?:\w+,\s*)?"([a-z_ ]+)"')
RULES = {rule for text in SOURCES for rule in CALL.findall(text)}
CLIPPED, STALL = (
    Alarm(rule, 3, "is clipped", severe=False) for rule in ("clipping", "stall")
)
GRADIENTS, MEAN, MODEL = (
    Alarm(rule, 3, "differ") for rule in ("gradients", "mean", "model")
)


def test_every_rule_has_a_page() -> None:
    assert len(RULES) > 25
    table = re.findall(r"^\| ([a-z_, ]+) \|", (ROOT / RULES_PAGE).read_text(), re.M)
    explained = {rule for cell in table for rule in cell.split(", ")}
    assert RULES - PAGES.keys() <= explained
    assert PAGES.keys() <= RULES


def test_named_pages_exist() -> None:
    pages = {RULES_PAGE, *PAGES.values(), *OF_CAUSES.values()}
    assert [page for page in pages if not (ROOT / page).is_file()] == []


def test_a_page_is_printed_after_its_first_alarm(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = [CLIPPED, GRADIENTS, MEAN, MODEL]
    RankExchange(1.0, raises=False).tell(found)
    pages = [f"minitrain: see {page}" for page in (PAGES["gradients"], RULES_PAGE)]
    # the note has none, and the first two alarms have the same
    lines = [CLIPPED.line, GRADIENTS.line, pages[0], MEAN.line, MODEL.line, pages[1]]
    assert capsys.readouterr().err.splitlines() == lines
    assert page_on(STALL.row()) == PAGES["stall"]


def test_show_names_each_page_once(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", steps=2)
    with (folder / "rank-0.jsonl").open("ab") as file:
        file.writelines(line_of(o.row()) for o in (GRADIENTS, CLIPPED, MEAN, STALL))
    shown = minitrain.show(folder)
    assert shown["pages"] == [PAGES["gradients"], PAGES["stall"]]
