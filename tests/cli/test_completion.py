"""Completion, asked of the shells themselves."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from waiting import GENEROUS_S

from minitrain.cli.check import OPTIMIZERS
from minitrain.cli.completion import SHELLS
from minitrain.cli.main import COMMANDS, run
from minitrain.sync.catalog import STRATEGIES

BASH = """
eval "$(cat script)"
complete -p minitrain >/dev/null || exit 3
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_shtab_minitrain
printf '%s\\n' "${COMPREPLY[@]}"
"""
# each prints how it completes the first word
OTHERS = {
    "zsh": 'autoload -U compinit; compinit -u -D; eval "$(cat script)"; '
    "print ${_comps[minitrain]}; print ${(t)_shtab_minitrain_verify_options}",
    "fish": "source script; complete -C 'minitrain verif' | string split -f 1 \\t",
}
SAID = {"zsh": "_shtab_minitrain\narray\n", "fish": "verify\n"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files that could be meant, and the script beside them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("mine.pt", "my_model.py"):
        Path(name).touch()
    Path("my_runs").mkdir()
    return tmp_path


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert run(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", [*COMMANDS]),
        ("ver", ["verify"]),
        ("explain --", ["--help", "--json"]),
        ("verify mine.pt other.pt --st", ["--strip-prefix"]),
        ("verify mi", ["mine.pt"]),
        ("verify mine.pt my", ["my_model.py", "my_runs"]),
        ("verify a b --picture mi", ["mine.pt"]),
        ("check m", ["my_model.py", "my_runs"]),
        ("check my_model.py:build --loss my_m", ["my_model.py"]),
        ("check my_model.py:build --optimizer ", [*OPTIMIZERS]),
        ("check my_model.py:build --sync ", ["all", *STRATEGIES]),
        ("check my_model.py:build --sync zer", ["zero1"]),
        ("completion ", [*SHELLS]),
    ],
)
def test_bash(
    words: str, expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("script").write_text(script("bash", capsys))
    plain = ["bash", "--norc", "--noprofile", "-c", BASH, "bash", "minitrain"]
    done = subprocess.run(
        [*plain, *words.split(" ")], capture_output=True, text=True, timeout=GENEROUS_S
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(expected)


@pytest.mark.parametrize("shell", OTHERS)
def test_other_shells(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    if not shutil.which(shell):
        pytest.skip(f"needs {shell}, which CI has")
    Path("script").write_text(script(shell, capsys))
    done = subprocess.run(
        [shell, "-f" if shell == "zsh" else "--no-config", "-c", OTHERS[shell]],
        capture_output=True,
        text=True,
        timeout=GENEROUS_S,
    )
    assert (done.stdout, done.stderr) == (SAID[shell], "")


@pytest.mark.parametrize("shell", SHELLS)
def test_script_names_all_commands(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["completion", shell, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["shell"] == shell
    assert [name for name in COMMANDS if name not in facts["script"]] == []
    assert facts["script"] + "\n" == script(shell, capsys)
