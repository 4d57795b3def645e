"""No false alarm: loops without a bug, of many kinds, and the recorder says nothing.

``MINITRAIN_CLEAN_RECORDINGS=100 pytest tests/frameworks/test_clean_recordings.py``
records as many; the suite records a few, always the same.
"""

import itertools
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from example_loops import LOOPS, Run, loops_by_fork

from minitrain.recording.format import read_recording

COUNT = int(os.environ.get("MINITRAIN_CLEAN_RECORDINGS", "12"))
Kind = tuple[int, str, int, float, bool]


def kinds() -> list[Kind]:
    """Seed, loop, ranks, dropout and bf16: every combination before one comes again."""
    product = [*itertools.product(LOOPS, (1, 2, 3, 4), (0.0, 0.1), (False, True))]
    random.Random(0).shuffle(product)
    endless = itertools.cycle(product)
    return [(seed, *kind) for seed, kind in zip(range(COUNT), endless, strict=False)]


def name_of(kind: Kind) -> str:
    seed, loop, ranks, dropout, bf16 = kind
    return f"{seed}-{loop}-{ranks}-{dropout}-{'bf16' if bf16 else 'float32'}"


def test_the_few_have_every_loop_and_number_of_ranks() -> None:
    few = kinds()[:12]
    assert {kind[1] for kind in few} == {*LOOPS}
    assert {kind[2] for kind in few} == {1, 2, 3, 4}


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    yield from loops_by_fork()


@pytest.mark.parametrize("kind", kinds(), ids=name_of)
def test_clean_run_gives_no_alarm(run: Run, kind: Kind, tmp_path: Path) -> None:
    seed, loop, ranks, dropout, bf16 = kind
    options = ["--seed", str(seed), "--dropout", str(dropout), *["--bf16"] * bf16]
    said = run(loop, ranks, tmp_path / "recording", *options)
    recording = read_recording(tmp_path / "recording")
    assert len(recording.ranks) == ranks
    for rank in recording.ranks.values():
        assert rank.end
        assert [row["line"] for row in rank.alarms if row["kind"] == "alarm"] == []
        # the first three steps, and two at least that come later
        assert len(rank.steps) >= 5
    assert [
        line
        for line in said.splitlines()
        if line.startswith("minitrain: ") and not line.startswith("minitrain: note")
    ] == []
