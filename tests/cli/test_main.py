"""Behavior common to all commands: help, version, mistakes, exit codes."""

import os
import re
import subprocess
import sys

import pytest
from one_line import refusal
from project import run_python
from waiting import GENEROUS_S

from minitrain.cli.main import COMMANDS, run


def test_without_arguments_there_are_examples(capsys) -> None:
    assert run([]) == 0
    text = capsys.readouterr().out
    assert all(f"    {name} " in text for name in COMMANDS)
    examples = re.findall(r"^  minitrain (\w+)", text, flags=re.MULTILINE)
    assert examples == [*COMMANDS]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_shows_its_examples(name: str, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        run([name, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "--json" in text
    codes = "exit codes: 0 all well, 1 a check failed or is undecided, 2 bad input"
    assert codes in text
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
        "verify a --twn=c b",
        "minitrain verify: --twn: unknown option (did you mean --twin?); see "
        "minitrain verify --help",
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
        "record runs/x python train.py",
        "minitrain record: 'python' is one argument too many: put -- before COMMAND; "
        "see minitrain record --help",
    ),
    (
        "record runs/x torchrun --nproc-per-node 2 train.py",
        "minitrain record: 'torchrun' is one argument too many: put -- before COMMAND; "
        "see minitrain record --help",
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
]


@pytest.mark.parametrize(("line", "message"), MISTAKES)
def test_mistake_is_one_line_with_what_was_meant(line: str, message: str) -> None:
    assert refusal(run, line.split()) == message


def test_closed_output_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert run(["explain"]) == 0


HELP = "try: run(['verify', '--help'])\nexcept SystemExit: print(has_torch())"
RECORD = "os.execvpe = lambda *_: sys.exit(print(has_torch()))\n"
RECORD += "run(['record', 'no-such-folder', '--', 'true'])"


@pytest.mark.parametrize("command", [HELP, RECORD], ids=["help", "record"])
def test_commands_start_without_torch(command: str) -> None:
    """The help, and `record` until the user's command replaces it."""
    code = f"""import os, sys; from minitrain.cli.main import run
def has_torch(): return "torch" in sys.modules
{command}
"""
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("False\n")
