"""Pages with something to type, typed in a small copy of the project."""

import shlex
import subprocess
from pathlib import Path

import pytest
from forks import pipeline, run_stages
from pages import blocks, change
from project import ROOT
from thorough import thorough_after

from minitrain.cli.main import run
from minitrain.core.files import read_json

PAGES = ("how-to/own-text", "how-to/own-model", "strategies")
# make also installs and sums up
BUILDS = {"dvc repro", "make"}


def state_of(folder: Path) -> str:
    return str(read_json(folder / "metrics/equivalence.json")["gloo-2"]["state_sha256"])


@pytest.mark.parametrize("page", thorough_after(1, PAGES))
def test_page_does_what_it_says(
    page: str, copy: Path, stages_by_fork: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with a run that is proven; what builds is its stages here."""
    monkeypatch.chdir(copy)
    before = state_of(copy)
    typed: list[str] = []
    for block in blocks((ROOT / f"docs/{page}.md").read_text(encoding="utf-8")):
        if block.language == "yaml":
            change(block, copy)
        first = block.text.partition("\n")[0].removeprefix("# ")
        if block.language == "python" and first.endswith(".py"):
            (copy / first).write_text(block.text)
        for command in block.commands if block.language == "sh" else []:
            typed.append(command.removeprefix(".venv/bin/"))
            if typed[-1] == "minitrain check my_model.py:build":
                assert run(["check", "my_model.py:build"]) == 0
            elif typed[-1].startswith("cp "):
                subprocess.run(typed[-1].split(), cwd=copy, check=True)
            elif typed[-1] in BUILDS:
                outcome = run_stages(stages_by_fork, copy, [["check"], *pipeline(2)])
                assert outcome.code == 0, outcome.output
    assert BUILDS & {*typed}
    assert read_json(copy / "metrics/equivalence.json")["gloo-2"]["verdict"] == "proven"
    # two ranks add in one order with every strategy
    assert (state_of(copy) == before) == (page == "strategies")


def test_what_would_refute_the_proof_does_not(
    base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(base)
    text = (ROOT / "docs/falsify.md").read_text()
    commands = [line for block in blocks(text) for line in block.commands]
    starts = ("sha256sum ", ".venv/bin/minitrain verify data", "grep ")
    hashed, verified, searched = (
        shlex.split(line) for one in starts for line in commands if line.startswith(one)
    )
    printed = subprocess.run(hashed, capture_output=True, text=True, check=True).stdout
    hashes = {line.split()[0] for line in printed.splitlines()}
    assert str([*hashes, *hashes]) == state_of(base)
    assert run(verified[1:]) == 0
    assert "equal" in capsys.readouterr().out
    lines = subprocess.run(searched, capture_output=True, text=True, check=True).stdout
    ours = [line for line in lines.splitlines() if "minitrain" in line]
    assert ours
    assert all("minitrain.proof.witness" in line for line in ours)
