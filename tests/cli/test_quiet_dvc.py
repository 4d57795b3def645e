"""DVC as `make` starts it: its hints are gone, and nothing else is."""

import io
import logging
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from project import ROOT, environment

from minitrain.cli.quiet_dvc import (
    HINTS,
    NEWS,
    WithoutHints,
    without_interrupts,
    without_news,
)

STAGE = """stages:
  make:
    cmd: echo Updating nothing > made; cat made
    outs: [made]
"""


def left(*texts: str) -> str:
    """What is handed on of these writes."""
    stream = io.StringIO()
    without = WithoutHints(stream)
    for text in texts:
        assert without.write(text) == len(text)
    return stream.getvalue()


def test_hint_goes_with_the_end_of_its_line() -> None:
    hint = "\nTo track the changes with git, run:\n\n\tgit add dvc.lock"
    assert left("Running stage 'a':", "\n", hint, "\n", "> b", "\n") == (
        "Running stage 'a':\n> b\n"
    )


def test_only_the_end_of_a_hint_is_taken_with_it() -> None:
    hint = "Use `dvc push` to send your updates to remote storage."
    assert left(hint, "\n", "\n", "ERROR: x", "\n") == "\nERROR: x\n"
    assert left(hint, "ERROR: x\n") == "ERROR: x\n"


@pytest.mark.parametrize(
    "text", ["", "\n", f"ERROR: {HINTS[0]}", f"Stage 'x': {HINTS[-1]}", "Update"]
)
def test_what_is_no_hint_is_handed_on(text: str) -> None:
    assert left(text) == text


def test_news_of_a_file_that_will_be_made_is_no_warning() -> None:
    def record(message: str) -> logging.LogRecord:
        level = logging.WARNING
        return logging.LogRecord("dvc_data", level, "x.py", 1, message, ("y",), None)

    assert not without_news(record(f"{NEWS} '%s'. It won't be created."))
    assert without_news(record("%s is broken"))


@pytest.mark.parametrize(("code", "shown"), [(130, False), (1, True), (143, True)])
def test_stage_that_was_interrupted_is_no_news(code: int, shown: bool) -> None:
    from dvc.exceptions import ReproductionError
    from dvc.stage.exceptions import StageCmdFailedError

    try:
        raise ReproductionError("x") from StageCmdFailedError("a command", code)
    except ReproductionError:
        told = sys.exc_info()
    record = logging.LogRecord("dvc.cli", logging.ERROR, "x.py", 1, "", None, told)
    assert without_interrupts(record) == shown


def test_error_without_a_cause_is_shown() -> None:
    record = logging.LogRecord("dvc.cli", logging.ERROR, "x.py", 1, "x", None, None)
    assert without_interrupts(record)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A pipeline of one stage, never run."""
    (tmp_path / "dvc.yaml").write_text(STAGE)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    # with our settings: others would tell their makers of each command
    (tmp_path / ".dvc").mkdir()
    shutil.copy(ROOT / ".dvc/config", tmp_path / ".dvc")
    return tmp_path


def repro(project: Path, *module: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", *module, "repro"],
        cwd=project,
        env=environment(),
        capture_output=True,
        text=True,
    )


@pytest.mark.pipeline
def test_hints_of_this_dvc_are_gone_and_the_rest_is_there(project: Path) -> None:
    quiet = repro(project, "minitrain.cli.quiet_dvc")
    assert quiet.returncode == 0, quiet.stderr
    (project / "dvc.lock").unlink()
    (project / "made").unlink()
    plain = repro(project, "dvc")
    assert plain.returncode == 0, plain.stderr
    # it does give them, in these words
    assert [hint for hint in HINTS if hint in plain.stdout][:4] == [*HINTS[:4]]
    assert not any(hint in quiet.stdout for hint in HINTS)
    # what a stage itself prints is its own affair
    assert "Updating nothing\n" in quiet.stdout
    assert "Running stage 'make':\n" in quiet.stdout
    assert "up to date" in repro(project, "minitrain.cli.quiet_dvc").stdout


@pytest.mark.pipeline
@pytest.mark.parametrize(
    ("pipeline", "said"),
    [
        (STAGE.replace("cat made", "exit 3"), "ERROR: failed to reproduce 'make'"),
        (STAGE.replace("cat made", "exit 143"), "exited with 143"),
        ("stages: [", "dvc.yaml' is invalid"),
    ],
)
def test_errors_and_exit_codes_are_those_of_dvc(
    project: Path, pipeline: str, said: str
) -> None:
    (project / "dvc.yaml").write_text(pipeline)
    quiet, plain = (repro(project, m) for m in ("minitrain.cli.quiet_dvc", "dvc"))
    assert quiet.returncode == plain.returncode != 0
    assert said in plain.stderr
    assert quiet.stderr == plain.stderr


@pytest.mark.pipeline
def test_interrupted_stage_has_the_last_word(project: Path) -> None:
    """It ends as one that Ctrl-C ended; plain DVC says that, too."""
    ended = STAGE.replace("cat made", "echo interrupted >&2; exit 130")
    (project / "dvc.yaml").write_text(ended)
    quiet, plain = (repro(project, m) for m in ("minitrain.cli.quiet_dvc", "dvc"))
    assert quiet.returncode == plain.returncode == 255
    assert "exited with 130" in plain.stderr
    assert quiet.stderr == "interrupted\n"
