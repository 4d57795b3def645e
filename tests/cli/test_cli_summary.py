"""``minitrain summary``: what it prints, and its exit codes."""

import json
from pathlib import Path

import pytest
from report_inputs import facts, ladder_of

from minitrain.cli.main import run
from minitrain.cli.summary import answer
from minitrain.core.files import write_json
from minitrain.report.manifest import manifest, summary


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the results of two processes."""
    ladders = {"gloo-2": ladder_of(2) | {"verdict": "proven"}}
    measured = facts([2], equivalence=ladders)
    metrics = tmp_path / "metrics"
    write_json(metrics / "manifest.json", manifest(measured))
    write_json(metrics / "summary.json", summary(measured))
    write_json(metrics / "timing.json", dict(measured.timing))
    losses = measured.losses["gloo-2"].assign(run="gloo-2")
    losses.to_csv(metrics / "losses.csv", index=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_lines_are_printed_and_given_to_programs(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["summary"]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[-1] == "Report metrics/report.html"
    assert run(["summary", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"ok": True, "lines": text.splitlines()}


def test_other_folder(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "metrics").rename(project / "mine")
    assert run(["summary", "--metrics", "mine"]) == 0
    assert capsys.readouterr().out.endswith("Report mine/report.html\n")


def test_breach_has_the_exit_code_of_the_evidence(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_json(project / "metrics/summary.json", {"breach": "gloo-2: x"})
    assert run(["summary"]) == 1
    assert capsys.readouterr().out.startswith("Breach: gloo-2: x.\n")


def test_outside_of_a_project_the_missing_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import argparse

    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match=r"metrics/summary\.json"):
        answer(argparse.Namespace(metrics=Path("metrics")))
