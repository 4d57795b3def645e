"""The walk: every number in it worked out again, by hand where that is short."""

import json
from itertools import chain

import pytest

from minitrain.cli.main import run
from minitrain.cli.walk import walk


def test_numbers_by_hand() -> None:
    taken = walk()
    ranks = taken["ranks"]
    of_ranks = {key: [rank[key] for rank in ranks] for key in ranks[0]}
    # the mean of -2 x^2 over two samples each: (1, 13), (2, 6), (3, 7), (12, 16)
    assert of_ranks["samples"] == [[0, 12], [1, 5], [2, 6], [11, 15]]
    assert of_ranks["gradient"] == [-170, -40, -58, -400]
    assert of_ranks["scaled"] == [-42.5, -10, -14.5, -100]
    assert taken["average"] == taken["one_process_gradient"] == -167
    assert taken["summed_gradient"] == -668
    assert {*of_ranks["after"]} == {taken["one_process_after"]}
    assert taken["one_process_after"] == pytest.approx(1.167)
    assert taken["summed_after"] == pytest.approx(1.668)
    assert of_ranks["alone"] == pytest.approx([1.17, 1.04, 1.058, 1.4])
    # every sample is read once an epoch, by the rank that owns it
    for epoch in (taken["batches"], taken["next_epoch"]):
        assert sorted(chain(*epoch)) == list(range(16))
    assert taken["batches"] != taken["next_epoch"]
    assert sorted(chain(*of_ranks["shard"])) == list(range(16))
    for rank in ranks:
        assert {*rank["samples"]} <= {*rank["shard"]}
    assert sorted(chain(*of_ranks["samples"])) == sorted(taken["batches"][0])


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain"]) == 0
    text = capsys.readouterr().out
    assert "  rank 3 owns 3 7 11 15    and reads 11 15 in step 0\n" in text
    assert "(-42.5) + (-10) + (-14.5) + (-100) = -167" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert run(["explain", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["average"] == -167
