"""Behavior common to all commands: help, version, mistakes, exit codes."""

import os
import re
import subprocess
import sys

import pytest
from one_line import refusal
from waiting import GENEROUS_S

from minitrain.cli import check
from minitrain.cli.command import Names
from minitrain.cli.main import COMMANDS, make_parser, run
from minitrain.train.config import OPTIMIZERS
from minitrain.train.precision import PRECISIONS

MODEL = ["check", "my_model.py:build"]


def test_without_arguments_there_are_examples(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run([]) == 0
    text = capsys.readouterr().out
    assert all(f"    {name} " in text for name in COMMANDS)
    examples = re.findall(r"^  minitrain (\w+)", text, flags=re.MULTILINE)
    assert examples == [*COMMANDS]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_shows_its_examples(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run([name, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "--json" in text
    assert "exit codes: 0 all well, 1 the evidence says no, 2 bad input" in text
    pairs = re.findall(r"^  # (.+)\n  (minitrain .+)$", text, flags=re.MULTILINE)
    assert pairs == [*COMMANDS[name].EXAMPLES.items()]
    assert len(pairs) >= 2
    assert max(map(len, text.splitlines())) <= 88


@pytest.mark.slow
def test_reader_that_closes_the_pipe_gets_no_error() -> None:
    """As `| head` does; this was exit code 2 and a line on stderr."""
    gone, ours = os.pipe()
    os.close(gone)
    done = subprocess.run(
        [sys.executable, "-m", "minitrain", "explain"],
        stdout=ours,
        stderr=subprocess.PIPE,
        text=True,
        timeout=GENEROUS_S,
    )
    os.close(ours)
    assert (done.returncode, done.stderr) == (0, "")


MISTAKES = [
    (
        "verfy a b",
        "COMMAND = 'verfy': must be one of record, show, check, verify, doctor, "
        "explain, report, summary (did you mean verify?)",
    ),
    (
        "check my_model.py:build --optimizer adam",
        "--optimizer = 'adam': must be one of adamw, sgd (did you mean adamw?)",
    ),
    (
        "verify a --strip-prfix=module. b",
        "minitrain verify: --strip-prfix: unknown option (did you mean "
        "--strip-prefix?); see minitrain verify --help",
    ),
    (
        "--vresion",
        "minitrain: --vresion: unknown option (did you mean --version?); see "
        "minitrain --help",
    ),
    (
        "verify a b c",
        "minitrain verify: 'c' is one argument too many; see minitrain verify --help",
    ),
    (
        "record runs/x",
        "minitrain record: no command; minitrain record FOLDER -- COMMAND",
    ),
    (
        "verify a",
        "minitrain verify: the following arguments are required: B; see minitrain "
        "verify --help",
    ),
    (
        "check my_model.py:build --steps many",
        "minitrain check: argument --steps: invalid int value: 'many'; see "
        "minitrain check --help",
    ),
]


@pytest.mark.parametrize(("line", "message"), MISTAKES)
def test_mistake_is_one_line_with_what_was_meant(line: str, message: str) -> None:
    assert refusal(run, line.split()) == message


def test_misspelt_strategy_gets_the_nearest_and_ones_own_is_accepted() -> None:
    line = refusal(run, [*MODEL, "--sync", "zero"])
    assert line.startswith("--sync = 'zero': must be one of all, ddp, ")
    assert line.endswith(" (did you mean zero1?)")
    options = make_parser().parse_args([*MODEL, "--sync", "mine:Mine"])
    assert options.sync == "mine:Mine"
    assert "mine" not in Names(["ddp"])


def test_choices_are_those_of_the_library() -> None:
    """They are repeated in the command, since the library's need torch."""
    assert tuple(OPTIMIZERS) == check.OPTIMIZERS
    assert PRECISIONS == check.PRECISIONS
