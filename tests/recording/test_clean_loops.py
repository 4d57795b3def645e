"""No false alarms: right loops of all kinds, whose recordings must be silent."""

from pathlib import Path
from typing import Any

import pytest
from raw_ddp import Setting, run
from thorough import thorough_after

from minitrain.comm.groups import distributed
from minitrain.harness.launcher import launch
from minitrain.recording.format import read_recording

STEPS = 6
# of 64 samples: epochs end with a part of a batch, and samplers pad it
BATCH = 16
PADDED = (3, "padding")
PLAIN: dict[str, Any] = {}
SETTINGS = [
    PLAIN,
    {"dropout": 0.2},
    {"autocast": True},
    {"passes": 2},
    {"clip": 0.1},
    {"clip": 0.1, "adam": True, "warm_up": 3},
    {"warm_up": 3},
    {"scaler": True, "clip": 0.1},
    {"adam": True, "every": 2},
    {"norm": True, "passes": 2},
    {"dropout": 0.1, "autocast": True, "passes": 2, "clip": 0.5, "warm_up": 2},
    {"scaler": True, "passes": 2, "adam": True, "norm": True, "dropout": 0.3},
]
# a number of ranks is launched once, and trains all of them
CLEAN = [
    (seed, Setting(**{"seed": seed, "steps": STEPS, "batch": BATCH} | setting))
    for seed, setting in enumerate(SETTINGS)
]


def train_all(folder: Path) -> None:
    with distributed(timeout_s=60) as (rank, world_size):
        for number, setting in CLEAN:
            run(folder / str(number), "", setting, rank, world_size)


@pytest.mark.parametrize("ranks", thorough_after(2, [1, 3, 2, 4]))
def test_right_loops_are_silent(
    tmp_path: Path, ranks: int, capfd: pytest.CaptureFixture[str]
) -> None:
    launch(train_all, ranks, tmp_path)
    for number, setting in CLEAN:
        recording = read_recording(tmp_path / str(number))
        assert recording.world_size == ranks
        for one in recording.ranks.values():
            # three ranks do not divide the samples
            lines = [r["line"] for r in one.alarms if (ranks, r["rule"]) != PADDED]
            assert lines == [], setting
            assert one.end is not None
            assert one.end["steps"] == {"0": STEPS}
    # nothing but the line at the end of each recording
    said = capfd.readouterr().err
    assert said.count("minitrain: ") == said.count("minitrain: recorded ")
