"""The page in a real browser: readable wide and narrow, bright and dark, offline.

Each way in which a page can be unreadable is planted once, and seen.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import WHY_NOT, Browser, browser
from readable import look_at
from report_inputs import facts, ladder_of, rung

from minitrain.report.breach import refuse
from minitrain.report.facts import Facts
from minitrain.report.overview import draw_overview
from minitrain.report.pictures import draw_account, draw_losses, draw_scaling
from minitrain.report.publish import report
from minitrain.report.render import sentence, to_html

pytestmark = pytest.mark.slow
NARROW, WIDE = 390, 1440
WINDOWS = [(width, scheme) for width in (NARROW, WIDE) for scheme in ("light", "dark")]
LONG = "Donaudampfschifffahrtsgesellschaft" * 8


@pytest.fixture
def chromium() -> Iterator[Browser]:
    if WHY_NOT:
        pytest.skip(WHY_NOT)
    with browser() as running:
        yield running


def with_all_outcomes() -> Facts:
    """Every kind of outcome, long words and many runs: a page at its worst."""
    sizes = [1, 2, 4]
    ladders: dict[str, Any] = {f"gloo-{size}": ladder_of(size) for size in sizes}
    ladders["gloo-2"] |= {"verdict": "replay only", "rests_on": LONG}
    ladders["gloo-4"] |= {"verdict": "proven", "replay_losses": rung("undecided")}
    ladders["gloo-4"]["loss"] = rung("not run", detail=LONG)
    texts = {f"gloo-{size}": ([LONG, "日本語 <b>"] * size)[:size] for size in sizes}
    shown = {"first_texts": texts}
    return facts(sizes, equivalence=ladders, **shown)


def written(f: Facts, folder: Path) -> Path:
    """The page of ``f`` with its pictures, in ``folder``."""
    (folder / "overview.svg").write_text(draw_overview(f))
    draw_scaling(f, sentence("headline", f), folder / "scaling.png")
    title = sentence("account_headline", f)
    draw_account(f.accounts, title, folder / "account.png")
    draw_losses(f.losses, sentence("losses_headline", f), folder / "losses.png")
    path = folder / "report.html"
    path.write_text(to_html(report(f), folder))
    return path


@pytest.mark.parametrize(("width", "scheme"), WINDOWS)
def test_page_is_readable(
    width: int, scheme: str, chromium: Browser, tmp_path: Path
) -> None:
    page = written(with_all_outcomes(), tmp_path)
    visit = chromium.visit(page.as_uri(), width=width, scheme=scheme)
    found = look_at(visit)
    assert found.faults == {}
    # it was looked at: the folded tables alone have hundreds
    assert found.texts > 300
    assert page.as_uri() in visit.asked
    # and it is dark where that was asked for
    ground = visit.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 24, 28)"}[scheme]


CUT = "(e => e.scrollWidth - e.clientWidth)(document.querySelector('{}'))"
HINT = "getComputedStyle(document.querySelector('.figure.scaling'), '::before').content"


@pytest.mark.parametrize("width", [640, 641])
def test_picture_that_is_cut_says_so(
    width: int, chromium: Browser, tmp_path: Path
) -> None:
    page = written(with_all_outcomes(), tmp_path)
    visit = chromium.visit(page.as_uri(), width=width)
    is_cut = visit.evaluate(CUT.format(".figure.scaling")) > 0
    assert is_cut == (width <= 640)
    assert ("scroll sideways" in visit.evaluate(HINT)) == is_cut
    printed = chromium.visit(page.as_uri(), width=width, media="print")
    assert printed.evaluate(HINT) == "none"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_of_a_breach_is_readable(
    scheme: str, chromium: Browser, tmp_path: Path
) -> None:
    broken = ladder_of(2) | {"ranks": rung("breach", detail=f"{LONG} <differs>")}
    verdicts = {"gloo-1": ladder_of(1), "gloo-2": broken}
    refuse(verdicts, tmp_path)
    page = tmp_path / "report.html"
    found = look_at(chromium.visit(page.as_uri(), width=NARROW, scheme=scheme))
    assert found.faults == {}
    assert found.texts > 10


def test_page_is_printed_bright_and_unfolded(chromium: Browser, tmp_path: Path) -> None:
    """Whatever the screen is."""
    page = written(with_all_outcomes(), tmp_path)
    visit = chromium.visit(page.as_uri(), width=NARROW, scheme="dark", media="print")
    ground = visit.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(255, 255, 255)"
    unfolded = "document.querySelector('details table').checkVisibility()"
    assert visit.evaluate(unfolded)
    assert not chromium.visit(page.as_uri()).evaluate(unfolded)
    assert visit.call("Page.printToPDF")["data"].startswith("JVBERi")
    assert look_at(visit).faults.keys() <= {"too_wide"}


WHOLE = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>t</title>
<style>body {{ color: #222; background: #fff; font: 16px sans-serif; }}</style></head>
<body><p>A paragraph.</p>{}</body></html>"""
PIXEL = "data:image/png;base64," + (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAA"
    "AABJRU5ErkJggg=="
)
WIDE_TABLE = f"<table><tr>{'<td>a cell of a table</td>' * 20}</tr></table>"


@pytest.mark.parametrize(
    ("planted", "faults"),
    [
        (f'<img src="{PIXEL}" alt="a pixel">', set()),
        (WIDE_TABLE, {"too_wide"}),
        # 4.48 on white, and the least that is enough
        ('<p style="color: #777">gray</p>', {"faint"}),
        ('<p style="color: #767676">gray</p>', set()),
        ('<p style="color: #0007">see-through</p>', {"faint"}),
        (
            "<details><summary>s</summary><p style='color: #999'>x</p></details>",
            {"faint"},
        ),
        ('<p style="font-size: 11px">small</p>', {"small"}),
        (f'<img src="{PIXEL}">', {"no_alt"}),
        (f'<img src="{PIXEL}" alt=" ">', {"no_alt"}),
        ('<img src="data:image/png;base64,AAAA" alt="torn">', {"not_drawn"}),
        (
            '<img src="http://127.0.0.1:9/x.png" alt="far">',
            {"elsewhere", "complaints", "not_drawn"},
        ),
        ('<p style="width: 3ch; word-break: break-all">gloo-2</p>', {"broken"}),
        ("<script>console.error('mine')</script>", {"complaints"}),
    ],
)
def test_planted_fault_is_seen(
    planted: str, faults: set[str], chromium: Browser, tmp_path: Path
) -> None:
    page = tmp_path / "planted.html"
    page.write_text(WHOLE.format(planted))
    found = look_at(chromium.visit(page.as_uri(), width=NARROW))
    assert found.faults.keys() == faults


# what a browser loads by itself, and where links lead
LOADS = re.compile(
    r"""\b(?:src|srcset|href|data|poster|action)\s*=\s*["']?([^"'\s>]+)"""
    r"""|url\(\s*["']?([^"')\s]+)|@import\s+["']?([^"'\s;]+)""",
    re.IGNORECASE,
)


def elsewhere(html: str) -> set[str]:
    addresses = {"".join(found) for found in LOADS.findall(html)}
    return {one for one in addresses if not one.startswith(("data:", "#"))}


def test_page_names_no_address_but_its_own(tmp_path: Path) -> None:
    html = written(with_all_outcomes(), tmp_path).read_text()
    assert LOADS.search(html)
    assert elsewhere(html) == set()


@pytest.mark.parametrize(
    "planted",
    [
        "<link rel=stylesheet href=//example.org/x.css>",
        "<style>body { background: url(https://example.org/x.png) }</style>",
        "<script src=other.js></script>",
    ],
)
def test_planted_address_is_seen(planted: str) -> None:
    assert elsewhere(planted)
