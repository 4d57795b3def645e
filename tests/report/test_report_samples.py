"""What the model says, as a terminal shows it."""

from typing import Any

import pytest

from minitrain.report.samples import spoken


def samples(**changes: Any) -> dict[str, Any]:
    said = {"gloo-1": ["a", "b", "c"], "gloo-2": ["a", "b", "c"]}
    whole = {"mute": None, "before": ["?", "!"], "after": said, "same_texts": True}
    return whole | changes


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
