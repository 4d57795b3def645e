"""The walk of `minitrain explain`: its numbers, computed by hand."""

from itertools import chain

import pytest

from minitrain.cli.explain import walk


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
