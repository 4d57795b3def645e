"""Files of the zoo study for the report, and its plots."""

from pathlib import Path
from typing import Any

import draw_matrix as draw
import pytest
from zoo_digest import loss_curve

from minitrain.core.files import read_json, write_json


def zoo() -> dict[str, Any]:
    """Return a zoo.json with three bugs, one of them not caught: two clean runs differ
    by 1, so that the second bug's curve, at 5, looks wrong.
    """

    def bug(check: str, losses: list[float], **verdicts: str) -> dict[str, Any]:
        about = {"met_in": "a project #1", "model": "plain", "check": check}
        return {**about, "verdicts": verdicts, "losses": losses}

    provenance = {"measured_at": "2026-01-01T02:03:04Z", "git_commit": "0123"}
    return {
        "bugs": {
            "sum_for_mean": bug("replay", [4.0] * 8, ranks="equal", replay="breach"),
            "other_data": bug("data", [9.0] * 8, data="breach", replay="breach"),
            "stops": bug("ranks", [4.0], ranks="equal"),
        },
        "clean": [{"breaches": []}, {"breaches": ["ranks"]}],
        "clean_losses": {"plain": [[4.0] * 8, [5.0] * 8]},
        "code": {"a.py": "0" * 16},
        "machine": {},
        **provenance,
    }


def test_zoo_leaves_its_digest_for_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, metrics = tmp_path / "studies/zoo", tmp_path / "metrics"
    for folder in (study, metrics):
        folder.mkdir(parents=True)
    monkeypatch.setattr(draw, "STUDY", study)
    write_json(study / "zoo.json", zoo())
    draw.main()
    found = read_json(metrics / "zoo.json")
    curves = [bug["loss"] for bug in found["bugs"].values()]
    assert curves == ["looks right", "looks wrong", "training stops"]
    caught = [bug["caught_by"] for bug in found["bugs"].values()]
    assert caught == [["replay"], ["data", "replay"], []]
    assert (found["clean_runs"], found["alarms"]) == (2, 1)
    assert found["provenance"]["code"] == {"a.py": "0" * 16}
    # two clean seeds 1 apart have a standard deviation of 0.71
    clean = [[4.0] * 8, [5.0] * 8]
    looks = [loss_curve([loss] * 8, clean) for loss in (4.7, 4.72)]
    assert looks == ["looks right", "looks wrong"]
    assert {path.name for path in study.glob("*.png")} == {"matrix.png", "losses.png"}
