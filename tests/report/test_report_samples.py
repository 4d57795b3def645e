"""What the model says, as a terminal and the page show it."""

import pytest
from report_inputs import samples

from minitrain.report.samples import spoken, spoken_sentences, spoken_table


@pytest.mark.parametrize(
    ("runs", "same", "last"),
    [
        (["gloo-1"], None, "  after   b"),
        (["gloo-1", "gloo-2"], True, "gloo-1 and gloo-2 say the same, letter by"),
        (["gloo-1", "gloo-2", "gloo-4"], False, "gloo-1, gloo-2 and gloo-4 do not all"),
    ],
)
def test_last_line_says_whether_the_runs_say_the_same(
    runs: list[str], same: bool | None, last: str
) -> None:
    after = {run: ["a", "b", "c"] for run in runs}
    lines = spoken(samples(after=after, same_texts=same))
    assert lines[1:4] == ["  before  ?", "  after   a", "  after   b"]
    assert lines[-1].strip().startswith(last.strip())
    assert len(lines) == 4 + (len(runs) > 1)


def test_lines_fit_a_terminal() -> None:
    long = ["x" * 200] * 3
    lines = spoken(samples(before=long, after={"gloo-1": long}))
    assert max(map(len, lines)) == 80
    assert lines[1].endswith("x...")


def test_model_that_cannot_be_sampled_is_one_line() -> None:
    lines = spoken(samples(mute="its output has no logits", before=[], after={}))
    assert lines == ["The model cannot be sampled: its output has no logits."]
    (line,) = spoken(samples(mute="y" * 200))
    assert len(line) == 80


def test_table_shows_equal_texts_once() -> None:
    assert spoken_table(samples(before=["\N{REPLACEMENT CHARACTER}|", ""])) == (
        "| training | the model writes |\n"
        "|---|---|\n"
        "| before | \N{REPLACEMENT CHARACTER}\\| |\n"
        "| before | (nothing) |\n"
        "| after, gloo-1 and gloo-2 | a |\n"
        "| after, gloo-1 and gloo-2 | b |\n"
        "| after, gloo-1 and gloo-2 | c |"
    )
    told = spoken_sentences(samples())
    assert "before training and after it" in told
    assert told.endswith(" gloo-1 and gloo-2 say the same, letter by letter.")


def test_table_shows_both_where_texts_differ() -> None:
    two = samples(after={"gloo-1": ["a"], "gloo-2": ["b"]}, same_texts=False)
    assert str(spoken_table(two)).splitlines()[-2:] == [
        "| after, gloo-1 | a |",
        "| after, gloo-2 | b |",
    ]
    assert "gloo-1 and gloo-2 do not all say the same" in spoken_sentences(two)


def test_table_of_one_run_compares_nothing() -> None:
    one = samples(after={"gloo-1": ["a"]}, same_texts=None)
    assert str(spoken_table(one)).splitlines()[-1] == "| after, gloo-1 | a |"
    assert " say the same" not in spoken_sentences(one)


def test_model_that_cannot_be_sampled_has_no_table() -> None:
    mute = samples(mute="its output has no logits", before=[], after={})
    assert spoken_table(mute) is None
    told = "The model cannot be sampled: its output has no logits."
    assert spoken_sentences(mute) == told
