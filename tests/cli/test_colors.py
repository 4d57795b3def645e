"""Colors: on a terminal, unless somebody said no, and never for a program."""

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest
import torch
from project import environment
from waiting import GENEROUS_S

from minitrain.analysis.verdicts import VERDICTS
from minitrain.cli.colors import COLOR_OF, colored, wants_color
from minitrain.cli.main import run


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[TextIO]:
    """A terminal that knows colors, with nobody against them."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream:
        yield stream
    os.close(ours)


def test_terminal_has_colors_and_a_file_none(terminal: TextIO, tmp_path: Path) -> None:
    assert wants_color(terminal)
    with open(tmp_path / "file", "w") as stream:
        assert not wants_color(stream)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("NO_COLOR", "1", False),
        ("NO_COLOR", "", True),
        ("TERM", "dumb", False),
        ("TERM", None, False),
    ],
)
def test_environment_has_a_say(
    terminal: TextIO,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str | None,
    wanted: bool,
) -> None:
    if value is None:
        monkeypatch.delenv(name)
    else:
        monkeypatch.setenv(name, value)
    assert wants_color(terminal) is wanted


def test_verdicts_are_painted_where_they_stand_by_hand() -> None:
    text = "\n".join(
        [
            "ranks     equal             equal to all",
            "replay    not run           one rank",
            "witness   within tolerance  2e-7",
            "breach: data: the batch of step 3 is different",
            "equality, and a sentence in which nothing is wrong",
            "",
        ]
    )
    assert colored(text).split("\n") == [
        "ranks     \x1b[32mequal\x1b[0m             equal to all",
        "replay    not run           one rank",
        "witness   \x1b[32mwithin tolerance\x1b[0m  2e-7",
        "\x1b[31mbreach\x1b[0m: data: the batch of step 3 is different",
        "equality, and a sentence in which nothing is wrong",
        "",
    ]


def test_every_verdict_has_a_color() -> None:
    assert {*VERDICTS} <= {*COLOR_OF}


def on_a_terminal(*arguments: str) -> str:
    """What ``minitrain`` shows there."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "minitrain", *arguments]
    variables = environment(TERM="xterm", NO_COLOR="")
    done = subprocess.run(command, stdout=theirs, env=variables, timeout=GENEROUS_S)
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert done.returncode == 0
    return shown


@pytest.mark.slow
def test_command_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "a.pt")
    torch.save({"w": torch.ones(2)}, path)
    shown = on_a_terminal("verify", path, path)
    assert shown == "\x1b[32mequal\x1b[0m: 1 tensor, every bit\r\n"
    monkeypatch.setattr("minitrain.cli.main.wants_color", lambda _: True)
    assert run(["verify", path, path, "--json"]) == 0
    assert "\x1b" not in capsys.readouterr().out
