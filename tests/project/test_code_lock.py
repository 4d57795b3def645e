"""Lock files of studies: the code that a measurement executes. That hashes are those of
the code alone: tests/studies/test_label.py.
"""

import os
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from project import ROOT, copy_project, load_yaml, run_in, run_python, set_params

from studies.code_lock import LOCKS, OF_HARNESS, is_measured, locks_of

STUDIES = sorted(file.parent for file in ROOT.glob("studies/*/dvc.yaml"))
MEASURED, DRAWN = LOCKS


@cache
def lists(lock: str = MEASURED) -> dict[str, set[str]]:
    return {study.name: locks_of(study).get(lock, set()) for study in STUDIES}


def test_change_makes_old_what_executes_it() -> None:
    def old(path: str) -> set[str]:
        return {name for name, files in lists().items() if path in files}

    # the studies of recovery and of checkpoints have the harness as their subject
    assert old("minitrain/core/files.py") == {*OF_HARNESS}
    of_compression = {"network", "prediction", "resume", "strategies"}
    assert old("minitrain/sync/compressed.py") == of_compression
    assert not old("minitrain/report/canvas.py")
    assert any("minitrain/report/canvas.py" in files for files in lists(DRAWN).values())


def test_list_is_the_only_code_that_a_study_depends_on() -> None:
    for study in STUDIES:
        stages = load_yaml(study / "dvc.yaml")["stages"]
        deps = [dep for stage in stages.values() for dep in stage["deps"]]
        assert [dep for dep in deps if dep.endswith(".py") or "minitrain" in dep] == []
        for name, stage in stages.items():
            assert len({*LOCKS} & {*stage["deps"]}) == 1, f"{study.name}: {name}"
        assert lists()[study.name], study


# settings with which a study takes seconds, and the script that measures
FEW = {"num_rounds": 15, "steps_per_round": 1}
SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "buckets": ("measure", FEW),
    "chaos": ("run", {"trials": 1}),
    "checkpoints": (
        "measure_costs",
        {**FEW, "steps_per_round": 2, "every_steps": [2]}
        | {"recorded_steps": 4, "num_loads": 1},
    ),
    "collectives": (
        "measure_sizes",
        {"world_sizes": [2], "largest_bytes": 64, "seconds_per_size": 0.05}
        | {"goals": {"4000": 0.05}},
    ),
    "invariance": (
        "compare",
        {"world_sizes": [1, 2], "num_steps": 4, "num_epochs": 1, "num_samples": 67},
    ),
    "ladder": ("climb", {"world_sizes": [2], "num_steps": 3}),
    "network": ("measure_links", {"num_rounds": 1, "links": {"unshaped": None}}),
    "noise": ("measure", {**FEW, "numbers_of_rounds": [6]}),
    "peers": ("measure", FEW),
    "prediction": ("measure_steps", FEW),
    "recorder": ("measure", {**FEW, "steps_per_round": 4}),
    "resume": (
        "interrupt",
        {"num_steps": 20, "steps_per_epoch": 10, "stop_every": 10}
        | {"stop_after_every_step": [], "in_new_processes": [2]},
    ),
    "scale": ("measure", {"num_sentences": [1000, 2000], "num_repeats": 1}),
    "stragglers": (
        "measure",
        {"num_trials": 1, "num_steps": 24, "num_warmup_steps": 2},
    ),
    "strategies": ("speed", {**FEW, "num_steps": 20}),
    "trace": ("record", {}),
    "zoo": ("inject", {"num_seeds": 2, "world_sizes": [1, 2], "num_loss_steps": 8}),
}


QUICK = ("noise",)
CASES = [
    pytest.param(study.name, marks=[] if study.name in QUICK else pytest.mark.thorough)
    for study in STUDIES
]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CASES)
def test_list_names_what_a_small_run_executes(name: str, tmp_path: Path) -> None:
    """Includes ranks and every process that the measuring script starts."""
    folder = copy_project(tmp_path)
    for stage in ("check", "corpus", "shard"):
        done = run_python("-m", f"stages.{stage}", folder=folder)
        assert done.returncode == 0, done.stderr
    for cached in [*folder.rglob("__pycache__")]:
        shutil.rmtree(cached)
    script, changes = SMALL[name]
    study = folder / "studies" / name
    set_params(study, {f"{name}.{key}": value for key, value in changes.items()})
    venv = ".venv-peers" if name == "peers" else ".venv"
    paths = os.pathsep.join([str(folder), str(folder / "studies/common")])
    command = (ROOT / venv / "bin/python", f"{script}.py")
    done = run_in(study, *command, timeout_s=1800, PYTHONPATH=paths)
    assert done.returncode == 0, done.stderr
    # what any process has imported: Python caches each file
    caches = [path.relative_to(folder) for path in folder.rglob("*.pyc")]
    names = [(path.parents[1], path.name.partition(".")[0]) for path in caches]
    found = {(home / f"{stem}.py").as_posix() for home, stem in names}
    found = {f for f in found if name in OF_HARNESS or is_measured(f)}
    found.add(f"studies/{name}/{script}.py")
    # the default model comes from the parameters of the tests, and may be another file
    assert found - lists()[name] == set()
    # what the list names beyond that is imported by functions that a small run skips
    if name in QUICK:
        assert lists()[name] == found
