from collections.abc import Iterator
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from report_inputs import ACCOUNT, account_of, facts, ladder_of, provenance_of

from minitrain.report import canvas
from minitrain.report.overview import draw_overview
from minitrain.report.pictures import draw_account, draw_scaling

SVG = "{http://www.w3.org/2000/svg}"
NASTY = '<script>alert(1)</script> & "quoted" \x0b\x00\ufffe end'


def texts(figure: Figure) -> list[str]:
    axes = figure.axes[0]
    legend = axes.get_legend()
    named = legend.get_texts() if legend else []
    return [text.get_text() for text in [*figure.texts, *axes.texts, *named]]


@pytest.fixture
def drawn() -> Iterator[list[Figure]]:
    figures: list[Figure] = []
    original = canvas.save

    def keep(figure: Figure, path: Path) -> None:
        figures.append(figure)
        original(figure, path)

    with mock.patch("minitrain.report.pictures.save", keep):
        yield figures


def test_scaling_names_the_medians_from_the_fastest_down(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    f, path = facts([2]), tmp_path / "scaling.png"
    draw_scaling(f, "word " * 40, path)
    # without the version of what drew it
    assert path.read_bytes().startswith(b"\x89PNG")
    assert b"matplotlib" not in path.read_bytes().lower()
    # a long title wraps inside the picture
    title, axes = drawn[0].texts[0].get_window_extent(), drawn[0].axes[0]
    assert title.x1 < drawn[0].bbox.x1
    assert title.y0 > axes.get_window_extent().y1
    names = texts(drawn[0])[-5:]
    assert f"DDP\n{f.baseline.tokens_per_s('gloo-2'):,.0f}" == names[2]
    alone = ["one process, both cores", "one process, 1 thread"]
    assert [name.partition("\n")[0] for name in names] == [
        *("ideal: 2 times one process", "no communication", "DDP", *alone)
    ]
    draw_scaling(facts([1]), "The finding", path)
    shown = {text.partition("\n")[0] for text in texts(drawn[1])}
    assert {"The finding", *alone} <= shown
    assert not {"DDP", "no communication", "ideal: 1 times one process"} & shown


def test_account_puts_a_negative_part_left_of_zero(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    negative = ACCOUNT | {"interference_ms": -6.0, "step_ms": 90.0}
    accounts = {"gloo-1": account_of(1), "gloo-2": negative}
    draw_account(accounts, "Where it goes", tmp_path / "account.png")
    draw_account({"gloo-1": account_of(1)}, "t", tmp_path / "one.png")
    legend = drawn[1].axes[0].get_legend()
    assert legend is not None
    # only components that are drawn
    names = [text.get_text() for text in legend.get_texts()]
    parts = ["data", "forward", "backward", "interference", "exposed communication"]
    assert names == [*parts, "other", "optimizer"]
    axes: Axes = drawn[0].axes[0]
    left = [bar for bar in axes.patches if bar.get_width() < 0]
    assert [bar.get_width() for bar in left] == [-6.0]
    assert left[0].get_hatch()
    unit = [figure.axes[0].get_xlabel() for figure in drawn]
    assert ["hatched" in text for text in unit] == [True, False]
    # gloo-1: 0.5 + 20 + 60 + 4 + 10 + 0.25 + 4
    assert max(bar.get_x() + bar.get_width() for bar in axes.patches) == 98.75
    shown = texts(drawn[0])
    assert "Where it goes" in shown
    assert {"a step: 98.8 ms", "a step: 90.0 ms"} <= {*shown}


def test_pictures_of_a_busy_machine_show_no_number(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    accounts = {"gloo-1": account_of(1)}
    draw_account(accounts, "t", tmp_path / "account.png", ["gloo-2"])
    (axes,) = drawn[0].axes
    runs = [label.get_text() for label in axes.get_yticklabels()]
    assert runs == ["gloo-1", "gloo-2"]
    assert texts(drawn[0]).count("not measured (machine busy)") == 1
    load = {"others_share": 0.4, "steal_share": 0.0}
    busy = facts([1, 2], baseline_provenance=provenance_of(1, load=load))
    draw_scaling(busy, "t", tmp_path / "scaling.png")
    assert [*texts(drawn[1])] == ["t", "not measured (machine busy)"]


def test_overview_shows_the_facts_of_the_run() -> None:
    # 12,078 samples, 32 of them a step, 870,000 parameters, 100 steps
    hashes = ["12345678" + "ab" * 28, "9abcdef0" + "ab" * 28]
    ladders = {"gloo-2": ladder_of(2) | {"state_sha256": hashes}}
    picture = ElementTree.fromstring(draw_overview(facts([2], equivalence=ladders)))
    shown = [str(text.text) for text in picture.iter(f"{SVG}text")]
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


def test_any_text_leaves_an_overview() -> None:
    made = {"gloo-2": provenance_of(2, sync=NASTY)}
    first = {"gloo-2": [NASTY, "日本語の文" * 40]}
    f = facts([2], provenance=made, first_texts=first)
    picture = ElementTree.fromstring(draw_overview(f))
    tags = {element.tag.removeprefix(SVG) for element in picture.iter()}
    others = {"svg", "title", "style", "defs", "marker"}
    assert tags == {*others, "path", "rect", "g", "text"}
    # at most three lines in each of two boxes, which clip what is wider
    samples = [t for t in picture.iter(f"{SVG}text") if t.get("font-style")]
    assert 2 <= len(samples) <= 6
