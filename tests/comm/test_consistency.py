"""Ranks compare what they bring before they begin."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from minitrain.comm.store import require_same
from minitrain.comm.torch_private import HashStore
from minitrain.core.errors import UserError


def outcomes(everyone: list[dict[str, Any]]) -> list[str]:
    """What each rank is told, empty where it may begin."""
    store = HashStore()
    store.set_timeout(timedelta(seconds=20))

    def be(rank: int) -> str:
        try:
            require_same(store, rank, len(everyone), everyone[rank])
        except UserError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(everyone)) as threads:
        return list(threads.map(be, range(len(everyone))))


FACTS = {"torch": "2.13.0", "samples": "a" * 64, "train.num_steps": 100}


def test_ranks_with_the_same_begin() -> None:
    assert outcomes([FACTS, dict(FACTS), dict(FACTS)]) == ["", "", ""]


@pytest.mark.parametrize(
    ("odd", "told"),
    [
        ({**FACTS, "torch": "2.12.0"}, "torch = 2.12.0, but 2.13.0 on host"),
        ({**FACTS, "train.num_steps": 99}, "train.num_steps = 99, but 100 on host"),
        ({**FACTS, "samples": "b" * 64}, "samples = bbbbbbbbbbbbbbbb..., but aaaa"),
        ({**FACTS, "torch": "x" * 500}, "torch = xxxxxxxxxxxxxxxx..., but"),
        ({**FACTS, "more": 1}, "more = 1, but None on host"),
        ({"torch": "2.13.0", "train.num_steps": 100}, "samples = None, but aaaa"),
    ],
)
def test_difference_is_told_to_all_with_its_host(
    odd: dict[str, Any], told: str
) -> None:
    lines = outcomes([FACTS, FACTS, odd])
    assert len(set(lines)) == 1
    assert lines[0].startswith("host ")
    assert "(rank 2): " in lines[0]
    assert "(rank 0)" in lines[0]
    assert told in lines[0]


def test_rank_that_does_not_come_is_not_waited_for_for_ever() -> None:
    store = HashStore()
    store.set_timeout(timedelta(seconds=1))
    with pytest.raises(dist.DistStoreError):
        require_same(store, 0, 2, FACTS)
