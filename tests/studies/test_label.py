"""Which code made a result, and whether there is newer code: true, and no more."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from project import ROOT

from minitrain.core.provenance import code_sha256
from studies.label import Made, label, made_by_pipeline, made_in_study

STUDIES = sorted(file.parent for file in ROOT.glob("studies/*/dvc.yaml"))
MACHINE = {"cpu": "Abacus", "gpu": None, "cores": 2, "torch": "2.13.0"}
ORIGIN = {"measured_at": "2026-01-02T03:04:05Z", "machine": MACHINE}


def test_every_study_has_a_result_with_a_script() -> None:
    found = {study.name: made_in_study(study) for study in STUDIES}
    assert {len(made) for made in found.values()} == {1, 2}
    assert [one.script.name for one in found["strategies"]] == ["speed.py", "runs.py"]
    for study, made in found.items():
        for one in made:
            assert one.script.is_file()
            # its own stage writes what is recorded
            assert "provenance(" in one.script.read_text(), study


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A study of one measurement and a picture, in a project."""
    folder = tmp_path / "studies/mine"
    folder.mkdir(parents=True)
    (tmp_path / ".dvc").mkdir()
    (folder / "measure.py").write_text("print(1)\n")
    (folder / "dvc.yaml").write_text("""
stages:
  measure:
    cmd: ../../stages/python measure.py
    deps: [measure.py]
    outs: [{rows.csv: {cache: false}}, {mine.json: {cache: false}}]
  draw:
    cmd: ../../stages/python draw.py
    deps: [draw.py, rows.csv]
    outs: [{mine.png: {cache: false}}]
""")
    return folder


def record(study: Path, **changes: Any) -> list[Made]:
    code = code_sha256(study / "measure.py")
    content = {**ORIGIN, "code_sha256": code, **changes}
    (study / "mine.json").write_text(json.dumps(content))
    return made_in_study(study)


def test_result_of_the_code_of_today_and_of_older_code(study: Path) -> None:
    (made,) = record(study)
    assert not made.outdated
    assert label([made], "make study-mine") == (
        f"- `measure.py`: made by code {str(made.code)[:12]}. Measured on 2026-01-02: "
        "Abacus, 2 cores, torch 2.13.0.\n"
    )
    (study / "measure.py").write_text("print(2)\n")
    (made,) = made_in_study(study)
    assert made.outdated
    warning = "- Newer code may give other numbers: `make study-mine` measures again.\n"
    assert label([made], "make study-mine").endswith(f"torch 2.13.0.\n{warning}")


def test_result_of_code_that_nobody_recorded(study: Path) -> None:
    (made,) = record(study, code_sha256=None)
    assert made.outdated
    assert "made by code that nobody recorded. Measured on 2026-01-02" in label(
        [made], "make"
    )
    (study / "mine.json").unlink()
    (made,) = made_in_study(study)
    assert label([made], "make") == (
        "- `measure.py`: made by code that nobody recorded.\n"
        "- Newer code may give other numbers: `make` measures again.\n"
    )


def test_one_outdated_part_warns_of_all(study: Path) -> None:
    (made,) = record(study)
    content = {"model": {}, "provenance": {**ORIGIN, "code_sha256": made.code}}
    (study / "mine.json").write_text(json.dumps(content))
    # it may stand in a section of its own
    (made,) = made_in_study(study)
    assert not made.outdated
    other = Made(study / "measure.py", "0" * 64, ORIGIN)
    assert "Newer code" in label([made, other], "make")


def test_pipeline_has_two_measurements(study: Path) -> None:
    root = study.parents[1]
    shutil.copytree(ROOT / "stages", root / "stages")
    manifest = {**ORIGIN, "baseline_measured_at": "2026-01-09T03:04:05Z"}
    manifest |= {"code_sha256": "1" * 64, "baseline_code_sha256": "2" * 64}
    train, baseline = made_by_pipeline(root, manifest)
    assert (train.script.name, train.code) == ("train.py", "1" * 64)
    assert (baseline.script.name, baseline.code) == ("baseline.py", "2" * 64)
    said = label([train, baseline], "make")
    assert "code 111111111111. Measured on 2026-01-02" in said
    assert "code 222222222222. Measured on 2026-01-09" in said
