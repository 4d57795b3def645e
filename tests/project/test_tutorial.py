"""The tutorial, typed: every command, every change, every output that it shows.

Outputs are compared by shape: names as they are, numbers as numbers.
"""

import re
import shlex
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from forks import stages_in_forks
from pages import blocks, change
from project import ROOT, copy_project, git, run_in

# DVC looks at every file for every question
pytestmark = [pytest.mark.timeout(600), pytest.mark.thorough]

TEXT = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
BLOCKS = blocks(TEXT)
# the batch of the default, so that the tutorial's is another one
SMALL = {"corpus.num_sentences": 80, "train.global_batch_size": 32}
# make does more, and tests activate no environment
INSTEAD = {
    "make": "dvc repro",
    "source .venv/bin/activate": "git status",
    "make experiments": "dvc exp show --no-pager --only-changed",
}
OF_SPEED = re.compile(r"speedup|noise_floor|machine_busy|tokens_per_s|_ms|_pct")
METRICS = "dvc metrics diff --precision 9"


# how a command ended, and what it printed
Typed = tuple[int, str]


@pytest.fixture(scope="module")
def folder(stages_by_fork: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small project as a clone has it."""
    folder = copy_project(tmp_path_factory.mktemp("tutorial") / "clone", SMALL)
    stages_in_forks(folder, stages_by_fork)
    # the copy leaves it out; git commits only what it knows
    (folder / "dvc.lock").write_text("schema: '2.0'\nstages: {}\n")
    name, address = "config user.name Somebody", "config user.email one@example.org"
    for words in (name, address, "add --all", "commit --quiet --message clone"):
        git(folder, *words.split())
    return folder


@pytest.fixture(scope="module")
def typed(folder: Path) -> dict[str, list[Typed]]:
    """The whole tutorial, from its first command to its last: each, as often as it
    stands there.
    """
    found: dict[str, list[Typed]] = {}
    for block in BLOCKS:
        if block.language in ("yaml", "diff"):
            change(block, folder)
        for command in block.commands if block.language == "sh" else []:
            program, *words = shlex.split(INSTEAD.get(command, command))
            assert program in ("dvc", "git"), f"{command} is not typed here"
            python = [sys.executable, "-m"] if program == "dvc" else []
            done = run_in(folder, *python, program, *words, timeout_s=280)
            ended = done.returncode, done.stdout + done.stderr
            found.setdefault(command, []).append(ended)
    return found


def shown_below(command: str) -> str:
    """The output of ``command`` as the tutorial shows it."""
    (text,) = (
        below.text
        for above, below in pairwise(BLOCKS)
        if (above.language, below.language) == ("sh", "text")
        and above.commands[-1] == command
    )
    return text


def shapes(text: str) -> list[str]:
    """The lines of ``text`` with every number as ``#``, however wide columns are."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not OF_SPEED.search(line)]
    return [re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", "#", line) for line in lines]


def test_every_command_ends_well(typed: dict[str, list[Typed]]) -> None:
    """Except the one after the bug."""
    *well, (code, output) = typed["dvc repro"]
    assert code == 255, output
    ended = {**typed, "dvc repro": well}
    assert {c: one for c, times in ended.items() for one in times if one[0]} == {}


def test_tables(typed: dict[str, list[Typed]]) -> None:
    """All but metrics of speed, which a busy machine has not."""
    for command in ("dvc stage list", "dvc params diff", METRICS):
        ((_, listed),) = typed[command]
        assert shapes(listed) == shapes(shown_below(command))
    # the loss is lower, as in the text
    loss = [float(x.split()[-1]) for x in listed.splitlines() if ".loss " in x]
    assert len(loss) == 2
    assert max(loss) < 0


def test_line_that_ends_a_broken_run(typed: dict[str, list[Typed]]) -> None:
    *_, (_, output) = typed["dvc repro"]
    line = re.findall(r"^error: .*$", output, re.MULTILINE)[0]
    # numbers aside: how many others follow depends on the model
    assert shapes(line) == shapes(shown_below("dvc repro"))
    assert "Traceback" not in output


def test_python_is_pasted_and_prints_what_stands_below_it() -> None:
    pairs = [(a.text, b.text) for a, b in pairwise(BLOCKS) if a.language == "python"]
    assert len(pairs) == 3
    for code, expected in pairs:
        # into the prompt: a function with a blank line cannot be pasted
        done = run_in(ROOT, sys.executable, "-i", "-q", given=f"{code}\n")
        assert "Error" not in done.stderr, done.stderr
        assert done.stdout == expected
