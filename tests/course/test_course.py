"""Every exercise of the course is done, in a small copy of the project, and has the
effect that its page promises. All begin from one pipeline.

Directions, not sizes, and nothing that a clock says: so it holds on any machine.
"""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from exercises import COURSE, PAGES, RUNS, Exercise, broken, of_runs, read
from look import look, main, messages, written
from mutated import run_stages
from pages import blocks, change
from project import PARAMS_FILE, run_dvc
from thorough import thorough_after

from minitrain.core.params import load_params
from minitrain.data.text import VOCAB_SIZE
from minitrain.model.factory import build_model
from minitrain.report.checks import RUNGS

EXERCISES = [read(path) for path in PAGES]
TRAINED = [one for one in EXERCISES if RUNS not in one.promises]
RERUN = [one for one in EXERCISES if RUNS in one.promises]
PARTS = ["Change", "Predict", "Run and compare", "What to look for"]
# DVC looks at every file for every question
pytestmark = pytest.mark.timeout(600)
of_base = cache(look)
float32 = np.float32


def by_name(exercise: Exercise) -> str:
    return exercise.name


@pytest.mark.parametrize("exercise", thorough_after(6, TRAINED), ids=by_name)
def test_effect_is_the_promised_one(
    exercise: Exercise, base: Path, copy: Path, stages_by_fork: str
) -> None:
    change(exercise.change, copy)
    stages = of_runs(copy)
    # what comes before has no other inputs than in the base
    first = next(i for i, s in enumerate(stages) if s[0] in exercise.touches())
    outcome = run_stages(stages_by_fork, copy, stages[first:])
    refused = "breach" in exercise.promises.values()
    assert (outcome.place, outcome.code) == ("equivalence", refused), outcome.output
    before = of_base(base, exercise.counts)
    assert broken(exercise.promises, before, look(copy, exercise.counts)) == []
    # had the change done nothing, that would show
    assert broken(exercise.promises, before, before)


@pytest.mark.parametrize("exercise", thorough_after(1, RERUN), ids=by_name)
def test_stages_that_run_are_the_promised_ones(exercise: Exercise, copy: Path) -> None:
    code, output = run_dvc(copy, "repro")
    assert code == 0, output
    assert "Running stage" not in output
    change(exercise.change, copy)
    code, output = run_dvc(copy, "repro")
    assert code == 0, output
    ran = re.findall(r"^Running stage '(\w+)", output, re.MULTILINE)
    assert sorted(ran) == sorted(exercise.promises[RUNS])


def test_index_lists_the_pages_in_order_and_each_has_its_parts() -> None:
    index = (COURSE / "README.md").read_text()
    assert len(EXERCISES) == 16
    assert index.startswith("# A course in sixteen exercises\n")
    row = re.compile(r"^\| \d+ \| \[.+\]\((\d\d-[\w-]+\.md)\) \|", re.MULTILINE)
    assert row.findall(index) == [one.path.name for one in EXERCISES]
    for exercise in EXERCISES:
        text, page = exercise.text, exercise.name
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == PARTS, page
        number, title = re.match(r"# (\d+)\. (.+)\n", text).groups()
        assert page.startswith(f"{int(number):02}-")
        assert f"| {number} | [{title}]({exercise.path.name}) |" in index, page
        asked, _, solution = text.partition('<details markdown="1">\n')
        assert solution.startswith("<summary>Solution</summary>\n\n"), page
        assert solution.endswith("\n</details>\n"), page
        # the change is shown before the solution, the effect is not
        assert exercise.change in blocks(asked), page
        assert len(blocks(asked)) == len(blocks(text)) - 1, page
        assert "](../reference.md#words)" in text, page


def test_what_a_student_sees(
    base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(base)
    main()
    printed = capsys.readouterr().out
    quantities, ladder = printed.split("\n\n")
    head, *rows = [re.split(r"  +", line.strip()) for line in quantities.splitlines()]
    shown, found = dict(rows), of_base(base, True)["gloo-2"]
    names = "verdict, state, gap, loss, samples, batches, calls a step, bytes a step"
    assert (head, [*shown]) == (["gloo-2"], names.split(", "))
    assert shown["state"] == found["state"]
    # so that the last bit is seen
    assert float32(float(shown["loss"])) == float32(found["loss"])
    assert shown["bytes a step"] == f"{found['bytes a step']:,}"
    # a line that is too long goes on below itself
    head, *rows = [
        re.split(r"  +", line) for line in re.sub(r"\n  +", " ", ladder).splitlines()
    ]
    assert ["= equal", f"replay: {RUNGS['replay']}"] in rows
    assert {row[1].partition(":")[0] for row in rows} == {
        name.removeprefix("rung ") for name in found if name.startswith("rung ")
    }
    assert max(map(len, printed.splitlines())) <= 80


def test_one_process_sends_no_message() -> None:
    """Nor is a step trained to count them."""
    counted = messages(load_params(PARAMS_FILE), Path("no such folder"), 1)
    assert {*map(written, counted.values())} == {"-"}


def test_numbers_that_an_exercise_gives_are_those_of_the_model() -> None:
    """Readers who did no other exercise predict with them."""
    (small,) = [one for one in EXERCISES if one.name.startswith("07-")]
    model = build_model(load_params(PARAMS_FILE).model, VOCAB_SIZE)
    biases = [p.numel() for p in model.parameters() if p.dim() == 1]
    matrices = [p.numel() for p in model.parameters() if p.dim() == 2]
    capped = round(0.02 * 2**20 / 4)
    text = " ".join(small.text.split())
    for words in (
        f"the model's {len([*model.parameters()])} tensors",
        f"hold {capped:,} numbers",
        f"{min(matrices):,} to {max(matrices):,}",
        f"and there are {len(matrices)};",
        f"{min(biases):,} to {max(biases):,}",
    ):
        assert words in text
    # each of them closes a bucket
    assert min(matrices) > capped
