"""The page in a browser: readable wide and narrow, light and dark, offline."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from browser import WHY_NOT, Browser, Visit, browser
from report_inputs import facts, ladder_of, rung

from minitrain.report.breach import refuse
from minitrain.report.facts import Facts
from minitrain.report.overview import draw_overview
from minitrain.report.pictures import draw_account, draw_losses, draw_scaling
from minitrain.report.publish import report
from minitrain.report.render import to_html

pytestmark = pytest.mark.slow
NARROW, WIDE = 390, 1440
# from the Web Content Accessibility Guidelines, for text of any size
LEAST_CONTRAST = 4.5
# all visible texts, after opening folded ones; colors are taken as opaque
SCRIPT = r"""
(() => {
  document.querySelectorAll("details").forEach(one => { one.open = true; });
  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, range = document.createRange();
    range.selectNodeContents(node);
    const shown = node.parentElement.checkVisibility() && range.getClientRects().length;
    if (node.data.trim() && shown) texts.push(node);
  }
  const broken = [];
  for (const node of texts) {
    for (const match of node.data.matchAll(/\b(gloo|nccl|replay)-\d+\b/g)) {
      const range = document.createRange();
      range.setStart(node, match.index);
      range.setEnd(node, match.index + match[0].length);
      const lines = new Set([...range.getClientRects()].map(box => box.top));
      if (lines.size > 1) broken.push(match[0]);
    }
  }
  const luminance = color => {
    const [r, g, b] = color.match(/[\d.]+/g).slice(0, 3).map(c => c / 255).map(
      c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = element => {
    if (!element) return "rgb(255, 255, 255)";
    const color = getComputedStyle(element).backgroundColor;
    return color.endsWith(", 0)") ? ground(element.parentElement) : color;
  };
  const contrast = element => {
    const [light, dark] = [getComputedStyle(element).color, ground(element)]
      .map(luminance).sort((a, b) => b - a);
    return (light + 0.05) / (dark + 0.05);
  };
  const root = document.documentElement;
  return {
    texts: texts.length,
    too_wide: Math.max(root.scrollWidth, document.body.scrollWidth) - innerWidth,
    faint: texts.filter(node => contrast(node.parentElement) < LEAST_CONTRAST)
      .map(node => node.data.trim().slice(0, 60)),
    no_alt: [...document.images].filter(one => !(one.getAttribute("alt") || "").trim())
      .map(one => one.src.slice(0, 60)),
    not_drawn: [...document.images].filter(one => !one.complete || !one.naturalWidth)
      .map(one => one.src.slice(0, 60)),
    broken,
  };
})()
"""


def look_at(visit: Visit) -> tuple[int, dict[str, Any]]:
    """Unfold the page and return its number of texts, and its faults by name: pixels
    beyond the window, texts with less than LEAST_CONTRAST, images without alt text or
    content, names of runs in two lines, external addresses, and errors.
    """
    seen = visit.evaluate(SCRIPT.replace("LEAST_CONTRAST", str(LEAST_CONTRAST)))
    texts, seen["too_wide"] = seen.pop("texts"), max(seen["too_wide"], 0)
    # the first is the page
    others = [one for one in visit.asked[1:] if not one.startswith("data:")]
    seen |= {"elsewhere": others, "complaints": visit.complaints}
    return texts, {name: fault for name, fault in seen.items() if fault}


GROUND = "getComputedStyle(document.body).backgroundColor"
FILL = "getComputedStyle(document.querySelector('.page')).fill"
GROUNDS = {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 24, 28)"}
LONG = "Donaudampfschifffahrtsgesellschaft" * 8


@pytest.fixture
def chromium() -> Iterator[Browser]:
    if WHY_NOT:
        pytest.skip(WHY_NOT)
    with browser() as running:
        yield running


def with_all_outcomes() -> Facts:
    sizes = [1, 2, 4]
    ladders: dict[str, Any] = {f"gloo-{size}": ladder_of(size) for size in sizes}
    ladders["gloo-2"] |= {"verdict": "replay only", "rests_on": LONG}
    ladders["gloo-4"] |= {"verdict": "proven", "replay_losses": rung("undecided")}
    ladders["gloo-4"]["loss"] = rung("not run", detail=LONG)
    texts = {f"gloo-{size}": ([LONG, "日本語 <b>"] * size)[:size] for size in sizes}
    return facts(sizes, equivalence=ladders, first_texts=texts)


def written(f: Facts, folder: Path) -> Path:
    (folder / "overview.svg").write_text(draw_overview(f))
    draw_scaling(f, "scaling", folder / "scaling.png")
    draw_account(f.accounts, "account", folder / "account.png")
    draw_losses(f.losses, "losses", folder / "losses.png")
    path = folder / "report.html"
    path.write_text(to_html(report(f), folder))
    return path


def test_page_is_readable(chromium: Browser, tmp_path: Path) -> None:
    page = written(with_all_outcomes(), tmp_path)
    for width, (scheme, color) in product((NARROW, WIDE), GROUNDS.items()):
        visit = chromium.visit(page.as_uri(), width=width, scheme=scheme)
        texts, faults = look_at(visit)
        assert faults == {}, (width, scheme)
        # the folded tables alone have hundreds of texts
        assert texts > 300
        assert page.as_uri() in visit.asked
        # page and overview follow the color scheme
        assert visit.evaluate(GROUND) == color
        overview = (tmp_path / "overview.svg").as_uri()
        assert chromium.visit(overview, scheme=scheme).evaluate(FILL) == color


CUT = "(e => e.scrollWidth - e.clientWidth)(document.querySelector('{}'))"
HINT = "getComputedStyle(document.querySelector('.figure.scaling'), '::before').content"


def test_picture_that_is_cut_says_so(chromium: Browser, tmp_path: Path) -> None:
    page = written(with_all_outcomes(), tmp_path)
    for width in (640, 641):
        visit = chromium.visit(page.as_uri(), width=width)
        is_cut = visit.evaluate(CUT.format(".figure.scaling")) > 0
        assert is_cut == (width <= 640)
        # the finding above the chart, whose title may be cut
        finding = visit.evaluate("document.querySelector('.scaling img').alt")
        for shown in (finding, "scroll sideways"):
            assert (shown in visit.evaluate(HINT)) == is_cut
        printed = chromium.visit(page.as_uri(), width=width, media="print")
        assert printed.evaluate(HINT) == "none"


def test_page_of_a_breach_is_readable(chromium: Browser, tmp_path: Path) -> None:
    broken = ladder_of(2) | {"ranks": rung("breach", detail=f"{LONG} <differs>")}
    refuse({"gloo-1": ladder_of(1), "gloo-2": broken}, tmp_path)
    page = tmp_path / "report.html"
    for scheme in GROUNDS:
        visit = chromium.visit(page.as_uri(), width=NARROW, scheme=scheme)
        texts, faults = look_at(visit)
        assert (texts > 10, faults) == (True, {}), scheme


def test_page_is_printed_bright_and_unfolded(chromium: Browser, tmp_path: Path) -> None:
    page = written(with_all_outcomes(), tmp_path)
    visit = chromium.visit(page.as_uri(), width=NARROW, scheme="dark", media="print")
    assert visit.evaluate(GROUND) == GROUNDS["light"]
    unfolded = "document.querySelector('details table').checkVisibility()"
    assert visit.evaluate(unfolded)
    assert not chromium.visit(page.as_uri()).evaluate(unfolded)
    assert visit.call("Page.printToPDF")["data"].startswith("JVBERi")
    assert look_at(visit)[1].keys() <= {"too_wide"}
