"""The walk: every number in it worked out again, by hand where that is short."""

import json
from itertools import chain

import pytest

from minitrain.cli.main import run
from minitrain.cli.walk import walk


def test_numbers_by_hand() -> None:
    taken = walk()
    # the mean of -2 x^2 over two samples each: (1, 13), (2, 6), (3, 7), (12, 16)
    assert [rank.samples for rank in taken.ranks] == [[0, 12], [1, 5], [2, 6], [11, 15]]
    assert [rank.gradient for rank in taken.ranks] == [-170, -40, -58, -400]
    assert [rank.scaled for rank in taken.ranks] == [-42.5, -10, -14.5, -100]
    assert taken.average == taken.one_process_gradient == -167
    assert taken.summed_gradient == -668
    ends = {rank.after for rank in taken.ranks}
    assert ends == {taken.one_process_after}
    assert taken.one_process_after == pytest.approx(1.167)
    assert taken.summed_after == pytest.approx(1.668)
    alone = [rank.alone for rank in taken.ranks]
    assert alone == pytest.approx([1.17, 1.04, 1.058, 1.4])


def test_every_sample_is_read_once_an_epoch() -> None:
    taken = walk()
    for epoch in (taken.batches, taken.next_epoch):
        assert sorted(chain(*epoch)) == list(range(16))
    assert taken.batches != taken.next_epoch
    assert sorted(chain(*(rank.shard for rank in taken.ranks))) == list(range(16))
    for rank in taken.ranks:
        assert set(rank.samples) <= set(rank.shard)
    read = chain(*(rank.samples for rank in taken.ranks))
    assert sorted(read) == sorted(taken.batches[0])


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain"]) == 0
    text = capsys.readouterr().out
    assert "  rank 3 owns 3 7 11 15    and reads 11 15 in step 0\n" in text
    assert "(-42.5) + (-10) + (-14.5) + (-100) = -167" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert run(["explain", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["average"] == -167
