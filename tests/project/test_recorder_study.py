"""The study of what the recorder costs, run as it is, with a model that is tiny."""

import json
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from project import ROOT, copy_project, set_params
from tiny import tiny_shards

ROUNDS = 15
SMALL = {
    "recorder.num_rounds": ROUNDS,
    "recorder.steps_per_round": 4,
    "recorder.memory_runs": 1,
}
ARMS = [
    "raw DDP loop",
    "recorded every 4",
    "between recorded steps",
    "every step recorded",
    "raw DDP loop again",
]


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The study in a copy of the project; its modules are imported from there."""
    folder = copy_project(tmp_path) / "studies/recorder"
    monkeypatch.syspath_prepend(folder)
    before = {*sys.modules}
    yield folder
    for name in {*sys.modules} - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == folder:
            del sys.modules[name]


@pytest.mark.slow
def test_study_measures_and_tells(study: Path, tmp_path: Path) -> None:
    tiny_shards(tmp_path / "data/shards", 2)
    set_params(study, SMALL)
    for script in ("measure", "measure_memory", "describe", "draw"):
        runpy.run_path(str(study / f"{script}.py"), run_name="__main__")
    rows = pd.read_csv(study / "rounds.csv")
    assert {*rows["arm"]} == {*ARMS}
    assert (rows.groupby("arm").size() == ROUNDS).all()
    steps = pd.read_csv(study / "steps.csv")
    # where none was recorded; four of each turn, and the same batches
    assert {*steps["arm"]} == {ARMS[0], ARMS[2], ARMS[4]}
    assert (steps.groupby("arm").size() == 4 * ROUNDS).all()
    assert (steps.groupby("round")["tokens"].nunique() == 1).all()
    # a turn is its steps, and two barriers
    by_arm = steps.groupby("arm")["seconds"].sum()
    turns = rows.groupby("arm")["seconds"].sum()[by_arm.index]
    assert (by_arm <= turns).all()
    found = json.loads((study / "machine.json").read_text())
    # three steps, then turns of one step that is not timed and four that are
    assert found["steps"] == 3 + 5 * ROUNDS == 78
    states = found["states_sha256_of_ranks"]
    assert {state for ranks in states.values() for state in ranks} == {
        states["raw DDP loop"][0]
    }
    # 78 steps are recorded, three, and 3 + steps 4, 8, ... 76
    sizes = found["bytes_of_rank_0"]
    every_4, every_step = (sizes[ARMS[n]] - sizes[ARMS[2]] for n in (1, 3))
    assert every_4 / every_step == pytest.approx(19 / 75, rel=0.02)
    table = (study / "table.md").read_text()
    assert "- After 78 steps all arms have the same bits." in table
    assert (study / "recorder.png").is_file()


def test_steps_of_a_turn_are_one_round() -> None:
    """Two turns of two steps, each after one that was not timed."""
    path = ROOT / "studies/recorder/recorder_rows.py"
    median_steps = runpy.run_path(str(path))["median_steps"]
    about = {"arm": "a", "processes": 2, "threads": 1, "world_size": 2, "tokens": 10}
    times = {1: 1.0, 2: 3.0, 4: 5.0, 5: 6.0}
    steps = pd.DataFrame(
        [{"round": number, **about, "seconds": s} for number, s in times.items()]
    )
    turns = median_steps(steps, 2)
    assert list(turns["round"]) == [0, 1]
    assert list(turns["seconds"]) == [2.0, 5.5]
    assert list(turns["tokens"]) == [10, 10]
