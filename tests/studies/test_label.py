"""Labels of results: the code that measured them, and later changes."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from project import ROOT

from minitrain.core.code_lock import lock_of, lock_text
from minitrain.core.files import write_json
from minitrain.core.provenance import code_sha256, provenance
from minitrain.report.study_results import since_then
from studies.label import label, label_of_study
from studies.results import made_by_pipeline, measured_in

MACHINE = {"cpu": "Abacus", "gpu": None, "cores": 2, "torch": "2.13.0"}
ORIGIN = {"measured_at": "2026-01-02T03:04:05Z", "machine": MACHINE}
WHERE = "Measured on 2026-01-02: Abacus, 2 cores, torch 2.13.0."


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Create a project with a study of one measurement and a plot."""
    folder = tmp_path / "studies/mine"
    folder.mkdir(parents=True)
    for project in (tmp_path, tmp_path / "studies"):
        (project / ".dvc").mkdir()
    for number, name in enumerate("abc"):
        (folder / f"{name}.py").write_text(f"print({number})\n")
    (folder / "dvc.yaml").write_text("""
stages:
  measure:
    cmd: ../../stages/python a.py
    deps: [code.lock]
    outs: [{rows.csv: {cache: false}}, {mine.json: {cache: false}}]
  draw:
    cmd: ../../stages/python draw.py
    deps: [drawing.lock, rows.csv]
    outs: [{mine.png: {cache: false}}]
""")
    return folder


def record(study: Path, **changes: Any) -> None:
    write_json(study / "mine.json", {**ORIGIN, **changes})


def test_label_of_a_study_counts_what_changed(study: Path) -> None:
    root = study.parents[1]
    files = [f"studies/mine/{name}.py" for name in "abc"]
    lock = lock_of(root, files)
    (study / "code.lock").write_text(lock_text(lock))
    # a measurement stores the lock file of its time
    assert provenance(study / "a.py")["code"] == lock
    record(study, code=lock)
    expected = f"- `a.py`: {WHERE} None of its 3 measured files has changed since.\n"
    assert label_of_study(study) == expected
    (study / "a.py").write_text('"""Print."""\n\nprint(0)  # nothing\n')
    assert label_of_study(study) == expected
    (study / "b.py").write_text("print(2)\n")
    (study / "c.py").unlink()
    since = "Since then 2 of 3 measured files changed: studies/mine/b.py, "
    assert since_then(root, measured_in(study)["a.py"]).startswith(since)


def test_pipeline_has_two_measurements(study: Path) -> None:
    root = study.parents[1]
    shutil.copytree(ROOT / "stages", root / "stages")
    shutil.copy(ROOT / "dvc.yaml", root)
    code = code_sha256(root / "stages/train.py")
    manifest = {**ORIGIN, "baseline_measured_at": "2026-01-09T03:04:05Z"}
    manifest |= {"code_sha256": code, "baseline_code_sha256": "2" * 64}
    train, baseline = made_by_pipeline(root, manifest)
    assert (train.script.name, train.outdated) == ("train.py", False)
    assert (baseline.script.name, baseline.outdated) == ("baseline.py", True)
    assert label([train, baseline], "make") == (
        f"- `train.py`: made by code {str(code)[:12]}. {WHERE}\n"
        "- `baseline.py`: made by code 222222222222. "
        f"{WHERE.replace('-02:', '-09:')}\n"
        "- Newer code may give other numbers: `make` measures again.\n"
    )
    assert "Newer code" not in label([train], "make")
