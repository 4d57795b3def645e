"""Settings that are the same but for what has no effect."""

from dataclasses import replace

import pytest
from distinct import repeated
from setting import Setting

DDP = Setting("ddp", 2, 4, 128, 8, link="1gbit")


@pytest.mark.parametrize(
    "twin",
    [
        DDP,
        replace(DDP, link="1000mbit"),
        # 3.4 MB are one bucket
        replace(DDP, bucket_cap_mb=50.0),
    ],
)
def test_what_makes_the_same_steps_is_a_twin(twin: Setting) -> None:
    whole = replace(DDP, bucket_cap_mb=25.0)
    found = repeated([whole, DDP], [replace(DDP, samples=4), twin])
    assert found is not None
    assert found[0] == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"sync": "fp16_compress"},
        {"processes": 3},
        {"samples": 4},
        {"micro_batches": 2},
        {"n_embd": 96},
        {"link": "loopback"},
        {"link": "100mbit"},
        {"bucket_cap_mb": 0.5},
    ],
)
def test_what_makes_other_steps_is_none(changes: dict[str, object]) -> None:
    assert repeated([DDP], [replace(DDP, **changes)]) is None


def test_without_sync_a_link_and_a_cap_change_nothing() -> None:
    silent = replace(DDP, sync="none")
    for changes in ({"link": "loopback"}, {"bucket_cap_mb": 0.5}):
        assert repeated([silent], [replace(silent, **changes)]) == (0, silent)


def test_a_setting_is_held_out_once() -> None:
    other = replace(DDP, samples=4)
    assert repeated([DDP], [other, replace(other, link="1000mbit")]) == (1, other)
