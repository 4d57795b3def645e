"""The examples that help shows: each is run, in a folder that has what it names."""

import json
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from commands import output_of
from recorded import record
from run_on_disk import write
from subjects import make_run
from test_cli_check import MODEL

from minitrain.check.trial import run_ranks
from minitrain.cli import doctor
from minitrain.cli.main import COMMANDS, run
from minitrain.core.errors import UserError

pytestmark = pytest.mark.slow

EXAMPLES = [line for one in COMMANDS.values() for line in one.EXAMPLES.values()]
# tests/report makes the project that these need
NEED_ONE = ("minitrain report", "minitrain summary")
# tests/frameworks/test_unchanged.py starts commands, which this process would become
BECOMES = "minitrain record"
ELSEWHERE = [x for x in EXAMPLES if x.startswith((*NEED_ONE, BECOMES))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("examples")
    (path / "beside.py").write_text("WIDTH = 8\n")
    (path / "my_model.py").write_text(f"{MODEL}\nbuild = of_the_pipeline\n")
    (path / "net.py").write_text(f"{MODEL}\nbuild = linear\n")
    state = {"w": torch.ones(2, 3), "b": torch.zeros(3)}
    torch.save(state, path / "mine.pt")
    torch.save({f"module.{n}": t for n, t in state.items()}, path / "other.pt")
    outcome = run_ranks(make_run(), 2)
    for runs in ("data/runs", "before/runs"):
        write(path / runs / "gloo-2", outcome)
    for name in ("one", "two"):
        record(path / "runs" / name, steps=6)
    return path


@pytest.fixture(scope="module", autouse=True)
def one_examination() -> Iterator[None]:
    """Both examples of the doctor show what it found once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor, "examine", cache(doctor.examine))
        yield


@pytest.mark.parametrize("line", [x for x in EXAMPLES if x not in ELSEWHERE])
def test_example_is_run(line: str, folder: Path, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    _, *arguments = shlex.split(line)
    code, text = output_of(*arguments)
    assert code == 0
    assert text
    if "--json" in arguments:
        assert json.loads(text)


@pytest.mark.parametrize("line", [x for x in ELSEWHERE if x.startswith(NEED_ONE)])
def test_example_of_a_project_is_understood(
    line: str, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, *arguments = shlex.split(line)
    # refused for want of a project, for nothing else
    with pytest.raises((UserError, OSError), match=r"params\.yaml|summary\.json"):
        run(arguments)
