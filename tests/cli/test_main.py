"""Behavior common to all commands: help, version, mistakes, exit codes."""

import re

import pytest
from one_line import refusal
from project import run_python

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


MISTAKES = {
    "verfy a b": "minitrain: argument COMMAND: invalid choice: 'verfy' (choose from ",
    "verify a --twn=c b": "minitrain verify: unrecognized argument '--twn=c'; see mi",
    "--vresion": "minitrain: unrecognized argument '--vresion'; see minitrain --help",
    "verify a b c": "minitrain verify: unrecognized argument 'c'; see minitrain ver",
    "record runs/x python train.py": (
        "minitrain record: unrecognized argument 'python': put -- before COMMAND; see "
    ),
    "record runs/x": "minitrain record: no command; minitrain record FOLDER -- COMMAND",
    "verify a": "minitrain verify: the following arguments are required: B; see min",
}


def test_mistake_is_one_line() -> None:
    for line, message in MISTAKES.items():
        assert refusal(run, line.split()).startswith(message)


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
