"""The page in a real browser: readable wide and narrow, bright and dark, offline.

Each way in which a page can be unreadable is planted once, and seen.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import WHY_NOT, Browser, browser
from project import PARAMS_FILE
from readable import look_at
from report_inputs import ladder_of, results, rung, samples, zoo

from minitrain.core.params import load_params
from minitrain.report.account_words import account_headline
from minitrain.report.overview import draw_overview
from minitrain.report.page import compose
from minitrain.report.plots import draw_account, draw_losses
from minitrain.report.refused import refuse
from minitrain.report.results import Results
from minitrain.report.scaling_plot import draw_scaling
from minitrain.report.studied_bugs import digest
from minitrain.report.webpage import report_html
from minitrain.report.words import find, headline, losses_headline

pytestmark = pytest.mark.slow
NARROW, WIDE = 390, 1440
WINDOWS = [(width, scheme) for width in (NARROW, WIDE) for scheme in ("light", "dark")]
UNREADABLE = "\N{REPLACEMENT CHARACTER}"
LONG = "Donaudampfschifffahrtsgesellschaft" * 8


@pytest.fixture
def chromium() -> Iterator[Browser]:
    if WHY_NOT:
        pytest.skip(WHY_NOT)
    with browser() as running:
        yield running


def with_all_outcomes() -> Results:
    """Every kind of outcome, long words and many runs: a page at its worst."""
    sizes = [1, 2, 4]
    ladders: dict[str, Any] = {f"gloo-{size}": ladder_of(size) for size in sizes}
    ladders["gloo-2"] |= {"verdict": "replay only", "rests_on": LONG}
    ladders["gloo-4"] |= {"verdict": "proven", "replay_losses": rung("undecided")}
    ladders["gloo-4"]["loss"] = rung("not run", detail=LONG)
    texts = {f"gloo-{size}": ([LONG, "日本語 <b>"] * size)[:size] for size in sizes}
    # what no font has, and what has no place to break
    said = {run: [LONG, f"{UNREADABLE * 30} <i>{run}"] for run in texts}
    told = samples(before=[UNREADABLE * 64], after=said, same_texts=False)
    shown = {"first_texts": texts, "samples": told, "bugs": digest(zoo())}
    return results(sizes, equivalence=ladders, **shown)


def written(measured: Results, folder: Path) -> Path:
    """The page of ``measured`` with its pictures, in ``folder``."""
    finding = find(measured)
    (folder / "overview.svg").write_text(draw_overview(measured))
    scaling = measured.baseline.scaling()
    draw_scaling(scaling, headline(finding), folder / "scaling.png")
    title = account_headline(finding)
    draw_account(dict(measured.accounts), title, folder / "account.png")
    title = losses_headline(measured.losses)
    draw_losses(measured.losses, title, folder / "losses.png")
    path = folder / "report.html"
    path.write_text(report_html(compose(measured, finding), folder))
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
    # what the model says stands where learning does
    spoken = "document.querySelector('#learned table').innerText"
    assert f"after, gloo-4\t{LONG}" in visit.evaluate(spoken)
    # and it is dark where that was asked for
    ground = visit.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 24, 28)"}[scheme]


CUT = "(e => e.scrollWidth - e.clientWidth)(document.querySelector('{}'))"
HINT = "getComputedStyle(document.querySelector('#speed figure'), '::before').content"


@pytest.mark.parametrize("width", [NARROW, 640, 641, WIDE])
def test_picture_that_is_cut_says_so(
    width: int, chromium: Browser, tmp_path: Path
) -> None:
    page = written(with_all_outcomes(), tmp_path)
    visit = chromium.visit(page.as_uri(), width=width)
    is_cut = visit.evaluate(CUT.format("#speed figure")) > 0
    assert is_cut == (width <= 640)
    assert ("scroll sideways" in visit.evaluate(HINT)) == is_cut
    # what the model says is read, not scrolled
    assert visit.evaluate(CUT.format("#learned .scroll")) == 0
    printed = chromium.visit(page.as_uri(), width=width, media="print")
    assert printed.evaluate(HINT) == "none"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_of_a_breach_is_readable(
    scheme: str, chromium: Browser, tmp_path: Path
) -> None:
    broken = ladder_of(2) | {"ranks": rung("breach", detail=f"{LONG} <differs>")}
    verdicts = {"gloo-1": ladder_of(1), "gloo-2": broken}
    refuse(verdicts, load_params(PARAMS_FILE), tmp_path, tmp_path / "README.md")
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


def test_glossary_is_a_click_away(chromium: Browser, tmp_path: Path) -> None:
    page = written(with_all_outcomes(), tmp_path)
    visit = chromium.visit(page.as_uri())
    visit.evaluate("document.querySelector('a[href^=\"#term-\"]').click()")
    target = "document.querySelector(':target')"
    assert 0 <= visit.evaluate(f"{target}.getBoundingClientRect().y") < 900


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
        (f'<div style="overflow-x: auto">{WIDE_TABLE}</div>', set()),
        # 4.48 on white, and the least that is enough
        ('<p style="color: #777">gray</p>', {"faint"}),
        ('<p style="color: #767676">gray</p>', set()),
        ('<p style="color: #000a">see-through</p>', set()),
        ('<p style="color: #0007">see-through</p>', {"faint"}),
        ('<div style="opacity: .5"><p>half there</p></div>', {"faint"}),
        ('<div style="background: #222"><p>dark</p></div>', {"faint"}),
        ('<div style="background: #2225"><p>darker</p></div>', set()),
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
        ("<script>throw new Error('mine')</script>", {"complaints"}),
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


def test_dark_ink_in_the_dark_is_seen(chromium: Browser, tmp_path: Path) -> None:
    """A color that is right in the one scheme alone."""
    page = tmp_path / "planted.html"
    dark = "<style>@media (prefers-color-scheme: dark) { body { background: #111 } }"
    page.write_text(WHOLE.format(f"{dark}</style>"))
    seen = {
        scheme: look_at(chromium.visit(page.as_uri(), scheme=scheme)).faults.keys()
        for scheme in ("light", "dark")
    }
    assert seen == {"light": set(), "dark": {"faint"}}


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
        '<img src="https://example.org/x.png">',
        "<link rel=stylesheet href=//example.org/x.css>",
        "<style>@import 'https://example.org/x.css';</style>",
        "<style>body { background: url(https://example.org/x.png) }</style>",
        "<script src=other.js></script>",
    ],
)
def test_planted_address_is_seen(planted: str) -> None:
    assert elsewhere(planted)
