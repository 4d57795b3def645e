from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from minitrain.cli.main import run
from minitrain.core.printable import LONGEST_LINE, as_lines, printable

# a title, a color by C1, a reordered and a hidden character, a line break
ATTACK = "\x1b]0;x\x07\x9b31m\u202e\u2066\u200b\r\x7fx"
FORGED = f"{ATTACK}\nequal: all\n{'n' * 5000}"


def test_text_of_people_stays_and_what_acts_on_a_terminal_is_spelt_out() -> None:
    """Accents, other scripts, emoji, paths and JSON are not escaped."""
    for line in ("", "  naïve Müller 你好 😀", "a/b c: [1, 2] = 'x'\\n", "x" * 200):
        assert printable(line) == line
    assert as_lines(["a", "b\nc"]) == "a\nb\\nc"
    assert printable(ATTACK) == r"\x1b]0;x\x07\x9b31m\u202e\u2066\u200b\r\x7fx"
    for code in [*range(32), *range(127, 160), 0x061C, *range(0x202A, 0x202F)]:
        assert printable(chr(code)) == chr(code).encode("unicode_escape").decode()
    assert printable("\udc80\ufeff") == r"\udc80\ufeff"
    long = printable(f"a{'b' * 10**6}c")
    assert (long[:2], long[-2:], len(long) <= LONGEST_LINE) == ("ab", "bc", True)


def a_tensor(folder: Path) -> None:
    torch.save({FORGED: torch.ones(1), "same": torch.ones(2)}, folder / "a")
    torch.save({"same": torch.zeros(2)}, folder / "b")


def a_file(folder: Path) -> None:
    for name in ("a", "b"):
        (folder / name).mkdir()
        torch.save({"same": torch.ones(1)}, folder / name / "state.pt")
    (folder / "a" / f"{ATTACK}\nequal").write_text("")


def assert_harmless(printed: str) -> None:
    lines = printed.split("\n")
    assert all(line.isprintable() for line in lines), lines
    # some characters are escaped
    assert max(map(len, lines)) <= 2 * LONGEST_LINE
    assert not [line for line in lines if line.startswith("equal: all")]
    assert r"\x1b]0;x" in printed


@pytest.mark.parametrize("named", [a_tensor, a_file])
def test_difference_with_a_hostile_name(
    named: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named(tmp_path)
    assert run(["verify", f"{tmp_path}/a", f"{tmp_path}/b"]) == 1
    assert_harmless(capsys.readouterr().out)
