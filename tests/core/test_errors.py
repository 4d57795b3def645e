import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from project import ROOT, run_python

from minitrain.core.errors import EvidenceError, RankError, UserError, run_stage


def raising(error: BaseException) -> Callable[[], NoReturn]:
    def main() -> NoReturn:
        raise error

    return main


def outcome(main: Callable[[], None], capsys) -> tuple[object, str]:
    with pytest.raises(SystemExit) as raised:
        run_stage(main)
    return raised.value.code, capsys.readouterr().err


NOT_YOURS = PermissionError(13, "Permission denied", "metrics/a.json")
ENDS: list[tuple[BaseException, int, str]] = [
    (UserError("a: b = 1"), 2, "a: b = 1"),
    (UserError("one\n  two\n\nthree\n"), 2, "one two three"),
    (EvidenceError("ranks differ"), 1, "ranks differ"),
    (NOT_YOURS, 2, "metrics/a.json: Permission denied"),
    (OSError("something odd"), 2, "the operating system: something odd"),
    (KeyboardInterrupt(), 130, "interrupted"),
]


def test_one_line_and_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    for error, code, line in ENDS:
        assert outcome(raising(error), capsys) == (code, f"error: {line}\n")


def test_rank_that_failed_is_one_line_and_its_own_traceback_where_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = RankError("rank 1: ended with exit code -9")
    assert outcome(raising(killed), capsys) == (2, f"error: {killed}\n")
    # nor does its text act on a terminal
    failed = RankError("rank 1: ValueError: \x1b]0;x\nequal: all")
    failed.add_note("Traceback ...\n  model.py, line \x1b]0;x\n")
    line = "error: rank 1: ValueError: \\x1b]0;x equal: all\n"
    assert outcome(raising(failed), capsys) == (2, line)
    monkeypatch.setenv("MINITRAIN_TRACEBACK", "1")
    expected = f"Traceback ...\n  model.py, line \\x1b]0;x\n{line}"
    assert outcome(raising(failed), capsys) == (2, expected)


def test_bug_keeps_its_traceback() -> None:
    for error in (ValueError("a bug"), RuntimeError("a bug")):
        with pytest.raises(type(error), match="a bug") as raised:
            run_stage(raising(error))
        assert raised.value is error


def test_python_without_packages_and_a_folder_without_a_project_are_one_line(
    tmp_path: Path,
) -> None:
    module, command = ("-m", "stages.check"), ("-m", "minitrain", "summary")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    modules = {
        "markdown-it-py": "markdown_it",
        "numpy>=2": "numpy",
        "ruamel.yaml": "ruamel",
        "torch>=2.9": "torch",
    }
    needed, of_lab = (
        [modules.get(name, name) for name in names if name != "dvc"]
        for names in (project["dependencies"], project["optional-dependencies"]["lab"])
    )
    missing = ": missing packages "
    for words, folder, line in (
        (("-S", *module), ROOT, f"{missing}{', '.join(needed + of_lab)}: run `make`"),
        (("-S", *command), ROOT, f"{missing}{', '.join(needed)}: run `make`"),
        (module, tmp_path, f"error: params.yaml: not in {tmp_path}: run this in the "),
        (command, tmp_path, f"error: params.yaml: not in {tmp_path}: run this in the "),
    ):
        done = run_python(*words, folder=folder, PYTHONPATH=str(ROOT))
        assert (done.returncode, done.stdout) == (2, "")
        assert line in done.stderr
        assert done.stderr.count("\n") == 1


def test_output_that_cannot_be_written_is_one_line() -> None:
    code = "from minitrain.core.errors import run_stage\n"
    code += "run_stage(lambda: print('x', flush=True))"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 2
    assert done.stderr == "error: the operating system: no space left on the disk\n"
