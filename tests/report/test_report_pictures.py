from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from report_inputs import ACCOUNT, account_of, facts, provenance_of

from minitrain.report import canvas
from minitrain.report.pictures import draw_account, draw_scaling


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


@pytest.mark.parametrize("world_sizes", [[1], [1, 2, 4]])
def test_scaling(world_sizes: list[int], tmp_path: Path, drawn: list[Figure]) -> None:
    path = tmp_path / "scaling.png"
    draw_scaling(facts(world_sizes), "The finding", path)
    assert path.read_bytes().startswith(b"\x89PNG")
    shown = texts(drawn[0])
    assert "The finding" in shown
    labels = {text.partition("\n")[0] for text in shown}
    assert {"one process, 1 thread", "one process, both cores"} <= labels
    several = {"DDP", "no communication", "ideal: 4 times one process"}
    assert labels & several == (several if max(world_sizes) > 1 else set())


def test_scaling_names_the_medians_from_the_fastest_down(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    f = facts([2])
    draw_scaling(f, "word " * 40, tmp_path / "scaling.png")
    # a long title wraps inside the picture
    title, axes = drawn[0].texts[0].get_window_extent(), drawn[0].axes[0]
    assert title.x1 < drawn[0].bbox.x1
    assert title.y0 > axes.get_window_extent().y1
    names = texts(drawn[0])[-5:]
    assert f"DDP\n{f.baseline.tokens_per_s('gloo-2'):,.0f}" == names[2]
    assert [name.partition(",")[0].partition("\n")[0] for name in names] == [
        *("ideal: 2 times one process", "no communication", "DDP"),
        *("one process", "one process"),
    ]


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


def test_equal_inputs_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("one.png", "two.png"):
        draw_scaling(facts([1, 2]), "t", tmp_path / name)
    one, two = ((tmp_path / name).read_bytes() for name in ("one.png", "two.png"))
    assert one == two
    assert b"matplotlib" not in one.lower()


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
