"""Escaping of control characters in untrusted text."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from minitrain.cli.main import main
from minitrain.core.errors import RankError, run_stage
from minitrain.core.params import load_params
from minitrain.core.printable import LONGEST_LINE, as_lines, printable

# a title, a color by C1, a reordered and a hidden character, a line break
ATTACK = "\x1b]0;x\x07\x9b31m\u202e\u2066\u200b\r\x7fx"
FORGED = f"{ATTACK}\nequal: all\n{'n' * 5000}"
SHOWN = r"\x1b]0;x\x07\x9b31m\u202e\u2066\u200b"


def test_text_of_people_stays_and_what_acts_on_a_terminal_is_spelt_out() -> None:
    """Accents, other scripts, emoji, paths and JSON are not escaped."""
    for line in ("", "  naïve Müller 你好 😀", "a/b c: [1, 2] = 'x'\\n", "x" * 200):
        assert printable(line) == line
    assert as_lines(["a", "b\nc"]) == "a\nb\\nc"
    assert printable(ATTACK) == SHOWN + r"\r\x7fx"
    for code in [*range(32), *range(127, 160), 0x061C, *range(0x202A, 0x202F)]:
        assert printable(chr(code)) == chr(code).encode("unicode_escape").decode()
    assert printable("\udc80\ufeff") == r"\udc80\ufeff"
    long = printable(f"a{'b' * 10**6}c")
    assert (long[:2], long[-2:], len(long) <= LONGEST_LINE) == ("ab", "bc", True)


def states(folder: Path) -> list[str]:
    torch.save({FORGED: torch.ones(1), "same": torch.ones(2)}, folder / "a.pt")
    torch.save({"same": torch.zeros(2)}, folder / "b.pt")
    return ["verify", f"{folder}/a.pt", f"{folder}/b.pt"]


def folders(folder: Path) -> list[str]:
    for name in ("a", "b"):
        (folder / name).mkdir()
        torch.save({"same": torch.ones(1)}, folder / name / "state.pt")
    (folder / "a" / f"{ATTACK}\nequal").write_text("")
    return ["verify", f"{folder}/a", f"{folder}/b"]


def a_models_error(folder: Path) -> list[str]:
    (folder / "m.py").write_text(f"def build():\n    raise ValueError({FORGED!r})\n")
    (folder / "text").write_text("one\ntwo\n" * 20)
    return ["check", f"{folder}/m.py:build", "--text", f"{folder}/text"]


COMMANDS: dict[str, Callable[[Path], list[str]]] = {
    "tensors": states,
    "files": folders,
    "model": a_models_error,
    "option": lambda folder: ["doctor", f"--{FORGED}"],
    "argument": lambda folder: ["explain", FORGED],
}


def harmless(output: str) -> None:
    lines = output.split("\n")
    assert all(line.isprintable() for line in lines), lines
    # some characters are escaped
    assert max(map(len, lines)) <= 2 * LONGEST_LINE
    assert not [line for line in lines if line.startswith("equal: all")]


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_with_a_hostile_name(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["minitrain", *COMMANDS[name](tmp_path)])
    with pytest.raises(SystemExit) as left:
        main()
    printed = capsys.readouterr()
    found_a_difference = name in ("tensors", "files")
    assert left.value.code == (1 if found_a_difference else 2)
    harmless(printed.out + printed.err)
    assert r"\x1b]0;x" in printed.out + printed.err
    if not found_a_difference:
        assert printed.err.splitlines()[-1].startswith("error: ")


def of_params(folder: Path) -> None:
    (folder / "params.yaml").write_text(f'"\\e]0;x\\u202e{"k" * 500}": {{a: 1}}\n')
    load_params(folder / "params.yaml")


def of_another_host(folder: Path) -> None:
    error = RankError(f"rank 1 (host {ATTACK}): {FORGED}")
    error.add_note(FORGED)
    raise error


@pytest.mark.parametrize("stage", [of_params, of_another_host])
def test_stages_with_a_hostile_line(
    stage: Callable[[Path], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MINITRAIN_TRACEBACK", "1")
    with pytest.raises(SystemExit) as left:
        run_stage(lambda: stage(tmp_path))
    assert left.value.code == 2
    printed = capsys.readouterr().err
    assert "\x1b" not in printed
    assert r"\x1b]0;x" in printed
    assert all(c.isprintable() or c == "\n" for c in printed)
