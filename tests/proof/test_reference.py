"""References of strategies, and the hosts recorded by a run."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from minitrain.core.errors import EvidenceError
from minitrain.proof.ladder import reference_rung
from minitrain.proof.replay import hosts_of_run
from minitrain.sync.hierarchical import Hierarchical


class ForgetsTheThird(Hierarchical):
    @staticmethod
    def reference(
        gradients: Sequence[Tensor], hosts: Sequence[Sequence[int]] | None = None
    ) -> Tensor:
        return Hierarchical.reference(gradients, (hosts or [])[:2] or None)


def test_reference_that_forgets_a_host() -> None:
    """A correct reference, on one host and on two."""
    assert reference_rung(ForgetsTheThird, 2, [], torch.float32).verdict != "breach"
    rung = reference_rung(ForgetsTheThird, 4, [], torch.float32)
    assert rung.verdict == "breach"
    assert rung.detail.startswith("the reference is not a sum: 4 shards of ")
    assert " on 3 hosts: " in rung.detail or " on 4 hosts: " in rung.detail


class GivesNoNumber(Hierarchical):
    @staticmethod
    def reference(
        gradients: Sequence[Tensor], hosts: Sequence[Sequence[int]] | None = None
    ) -> Tensor:
        return torch.full_like(gradients[0], torch.nan)


def test_reference_that_gives_no_number() -> None:
    assert reference_rung(GivesNoNumber, 2, [], torch.float32).verdict == "breach"


def rows(*hosts: Any) -> list[dict[str, Any]]:
    return [{"kind": "buckets", "rank": r, "hosts": h} for r, h in enumerate(hosts)]


def test_hosts_of_a_run() -> None:
    assert hosts_of_run(rows([[0, 2], [1]], [[0, 2], [1]]), 3) == [[0, 2], [1]]
    # as for a strategy without hosts, or a run without reductions
    assert hosts_of_run([{"kind": "buckets", "rank": 0}], 3) == [[0, 1, 2]]
    assert hosts_of_run([], 2) == [[0, 1]]


@pytest.mark.parametrize(
    "hosts", [[[0, 1]], [[0, 1], [1, 2]], [[0, 1], [2, 3]], [[0, 1, 2, 2]], []]
)
def test_hosts_that_are_no_partition(hosts: list[list[int]]) -> None:
    with pytest.raises(EvidenceError, match="must hold each of 3 ranks once"):
        hosts_of_run(rows(hosts), 3)
