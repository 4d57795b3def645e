from typing import Any
from xml.etree import ElementTree

from report_inputs import facts, ladder_of, provenance_of

from minitrain.report.facts import Facts
from minitrain.report.overview import draw_overview

SVG = "{http://www.w3.org/2000/svg}"
NASTY = '<script>alert(1)</script> & "quoted" \x0b\x00\ufffe end'


def drawn(measured: Facts) -> ElementTree.Element:
    return ElementTree.fromstring(draw_overview(measured))


def texts(picture: ElementTree.Element) -> list[str]:
    return [str(text.text) for text in picture.iter(f"{SVG}text")]


def with_ladder(**rungs: Any) -> Facts:
    return facts([2], equivalence={"gloo-2": ladder_of(2) | rungs})


def test_it_shows_the_facts_of_the_run() -> None:
    # 12,078 samples, 32 of them a step, 870,000 parameters, 100 steps
    hashes = ["12345678" + "ab" * 28, "9abcdef0" + "ab" * 28]
    shown = texts(drawn(with_ladder(state_sha256=hashes)))
    for text in (
        "12,078 samples of text",
        "32 samples a step for 2 ranks",
        "rank 0",
        "rank 1",
        "all-reduce: every rank receives the mean",
        "870,000 numbers, 100 steps",
        "12345678…",
        "9abcdef0…",
        "= the same bytes on both ranks",
        "= the same bytes as its replay by one process",
    ):
        assert text in shown
    assert shown.count("16 of these") == 2
    assert any(text.startswith("“Rank 0 <b>reads</b>") for text in shown)


def test_any_text_leaves_a_picture() -> None:
    made = {"gloo-2": provenance_of(2, sync=NASTY)}
    first = {"gloo-2": [NASTY, "日本語の文" * 40]}
    picture = drawn(facts([2], provenance=made, first_texts=first))
    tags = {element.tag.removeprefix(SVG) for element in picture.iter()}
    others = {"svg", "title", "style", "defs", "marker"}
    assert tags == {*others, "path", "rect", "g", "text"}
    # at most three lines in each of two boxes, which clip what is wider
    samples = [t for t in picture.iter(f"{SVG}text") if t.get("font-style")]
    assert 2 <= len(samples) <= 6
