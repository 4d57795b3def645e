"""Progress on stderr: a bar on a terminal, rare lines elsewhere."""

import io
import re
import sys
from collections.abc import Iterator

import pytest
import tqdm.std

from minitrain.core.progress import progress


class Clock:
    """Clock that advances by work only."""

    def __init__(self) -> None:
        self.now = 1000.0

    def work(self, num_items: int, seconds_each: float) -> Iterator[int]:
        for item in range(num_items):
            self.now += seconds_each
            yield item


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(tqdm.std, "time", lambda: clock.now)
    return clock


def lines_of(items: Iterator[int], capsys: pytest.CaptureFixture[str]) -> list[str]:
    for _ in items:
        pass
    out, err = capsys.readouterr()
    assert out == ""
    assert "\r" not in err
    assert err == "" or err.endswith("\n")
    return err.splitlines()


def test_lines_say_how_far_it_is(clock: Clock, capsys) -> None:
    items = progress(clock.work(33, 1.0), "gloo-2 [tcp]", total=33)
    done = [line.rpartition(" [")[0] for line in lines_of(items, capsys)]
    # one item per second, one line every five, and one at the end
    assert done == [f"gloo-2 [tcp]: {n}/33" for n in (5, 10, 15, 20, 25, 30, 33)]
    # the last item coincides with a line: the end is printed once
    lines = lines_of(progress(clock.work(10, 5.0), "ten", total=10), capsys)
    ends = [line.rpartition(" [")[0] for line in lines][-2:]
    assert ends == ["ten: 9/10", "ten: 10/10"]


def test_items_that_become_slow(clock: Clock, capsys) -> None:
    """After many fast items a bar must not skip as many slow ones."""

    def work() -> Iterator[int]:
        yield from clock.work(100_000, 0.0001)
        yield from clock.work(60, 1.0)

    # the slow ones take a minute: a line every five seconds
    lines = lines_of(progress(work(), "tail"), capsys)
    assert len(lines) >= 12
    assert re.fullmatch(r"tail: 100060 \[\d\d:\d\d\]", lines[-1])

    # short work and other ranks are silent
    assert lines_of(progress(clock.work(40, 0.1), "short", total=40), capsys) == []
    items = progress(clock.work(1000, 1.0), "train", total=1000, show=False)
    assert lines_of(items, capsys) == []


def test_bar_on_a_terminal(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    items = progress(clock.work(10, 1.0), "train", total=10)
    assert [*items] == [*range(10)]
    assert "\rtrain: 100%|" in terminal.getvalue()
    assert "10/10" in terminal.getvalue()
