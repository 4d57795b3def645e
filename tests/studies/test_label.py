"""Labels of results: the code that measured them, and later changes."""

from pathlib import Path

from minitrain.core.code_lock import lock_of, lock_text
from minitrain.core.files import write_json
from minitrain.core.provenance import provenance
from studies.label import label_of_study

MACHINE = {"cpu": "Abacus", "gpu": None, "cores": 2, "torch": "2.13.0"}
WHERE = "Measured on 2026-01-02: Abacus, 2 cores, torch 2.13.0."
STAGES = """
stages:
  measure:
    cmd: ../../stages/python a.py
    deps: [code.lock]
    outs: [{rows.csv: {cache: false}}, {mine.json: {cache: false}}]
"""


def test_label_of_a_study_counts_what_changed(tmp_path: Path) -> None:
    study = tmp_path / "studies/mine"
    study.mkdir(parents=True)
    for project in (tmp_path, tmp_path / "studies"):
        (project / ".dvc").mkdir()
    files = [f"studies/mine/{name}.py" for name in "abc"]
    for number, name in enumerate(files):
        (tmp_path / name).write_text(f"def f():\n    return {number}\n")
    (study / "dvc.yaml").write_text(STAGES)
    lock = lock_of(tmp_path, files)
    (study / "code.lock").write_text(lock_text(lock))
    # a measurement stores the lock file of its time
    assert provenance(study / "a.py")["code"] == lock
    origin = {"measured_at": "2026-01-02T03:04:05Z", "machine": MACHINE, "code": lock}
    write_json(study / "mine.json", origin)
    expected = f"- `a.py`: {WHERE} None of its 3 measured files has changed since.\n"
    assert label_of_study(study) == expected
    same = '"""A."""\ndef f():\n\n    """Return it."""\n    return (0) # nothing\n'
    (study / "a.py").write_text(same)
    assert label_of_study(study) == expected
    (study / "b.py").write_text("def f():\n    return 1.0\n")
    (study / "c.py").unlink()
    since = "Since then 2 of 3 measured files changed: studies/mine/b.py, "
    assert f"- `a.py`: {WHERE} {since}" in label_of_study(study)
