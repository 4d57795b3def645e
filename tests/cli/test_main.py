"""What all commands have in common: help, version, exit codes, and how to start it."""

import os
import re
import subprocess
import sys

import pytest
from waiting import GENEROUS_S

from minitrain.cli.main import COMMANDS, run


def shown(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a call that ends ok prints."""
    with pytest.raises(SystemExit) as ended:
        run(arguments)
    assert ended.value.code == 0
    return capsys.readouterr().out


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
    text = shown([name, "--help"], capsys)
    assert "--json" in text
    assert "exit codes: 0 all well, 1 the evidence says no, 2 bad input" in text
    pairs = re.findall(r"^  # (.+)\n  (minitrain .+)$", text, flags=re.MULTILINE)
    assert pairs == [*COMMANDS[name].EXAMPLES.items()]
    assert len(pairs) >= 2
    assert max(map(len, text.splitlines())) <= 88


def test_help_of_verify_says_what_its_arguments_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = shown(["verify", "--help"], capsys)
    (a,) = re.findall(r"^  A +(.+)$", text, flags=re.MULTILINE)
    assert a.startswith("a state (.pt, .safetensors, a folder), a training run")
    assert re.search(r"^  B +another of the same kind$", text, flags=re.MULTILINE)


@pytest.mark.slow
def test_who_reads_the_first_line_alone_gets_no_error() -> None:
    """A reader that has gone, as `| head` goes: this was code 2 and a line."""
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
