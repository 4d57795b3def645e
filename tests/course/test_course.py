"""Every exercise of the course is done, in a small copy of the project, and has the
effect that its page promises. All begin from one pipeline.

Directions, not sizes, and nothing that a clock says: so it holds on any machine.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from operator import eq, gt, lt, ne
from pathlib import Path
from typing import Any

import pytest
from forks import pipeline, run_stages
from look import look, main
from pages import Block, blocks, change, edit, reruns, values
from project import ROOT, load_yaml, run_dvc
from ruamel.yaml import YAML
from thorough import thorough_after

COURSE = ROOT / "docs/course"
# of a run that is not there
MISSING = object()
HOLDS = {"same": eq, "differs": ne, "more": gt, "less": lt}
DIRECTION = re.compile(rf"({'|'.join(HOLDS)})(?: (?:as|from|than) (\S+))?")
# what `dvc repro` runs, as a promise
RUNS = "runs"
Quantities = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Exercise:
    """One page: its first ``yaml`` or ``diff`` block is the change, the last ``yaml``
    block what is promised.
    """

    path: Path
    text: str
    change: Block
    promises: dict[str, Any]

    def __str__(self) -> str:
        return self.path.stem

    @property
    def counts(self) -> bool:
        """True if it mentions messages, which take a separate training to count."""
        return any(name.endswith("a step") for name in self.promises)

    def touches(self) -> set[str]:
        """The stages whose own parameters or code it changes."""
        if self.change.language == "yaml":
            keys = list(values(self.change))
        else:
            keys = ["/".join(Path(edit(self.change).file).parts[:2])]
        return {stage for key in keys for stage in reruns()[key]}


def read(path: Path) -> Exercise:
    text = path.read_text(encoding="utf-8")
    changes = [one for one in blocks(text) if one.language in ("yaml", "diff")]
    promises = YAML(typ="safe").load(changes[-1].text)
    return Exercise(path, text, changes[0], promises)


def broken(
    promises: Mapping[str, Any], before: Quantities, after: Quantities
) -> list[str]:
    """The promises that do not hold, each with what was found.

    A promise is of ``RUN QUANTITY``: ``same``, ``differs``, ``more`` or ``less`` than
    before the change, or ``... as RUN`` after it; else the value itself.
    """
    found = []
    for promise, said in promises.items():
        run, _, quantity = promise.partition(" ")
        now, other, holds = after.get(run, {}).get(quantity, MISSING), said, eq
        if direction := DIRECTION.fullmatch(str(said)):
            word, than = direction.groups()
            there = after if than else before
            other = there.get(than or run, {}).get(quantity, MISSING)
            holds = HOLDS[word]
        # neither text nor what is undefined is more than anything
        ordered = all(isinstance(one, int | float) for one in (now, other))
        known = ordered if holds in (gt, lt) else MISSING not in (now, other)
        if not (known and holds(now, other)):
            found.append(f"{promise}: {said}, but {now} ({other})")
    return found


EXERCISES = [read(path) for path in sorted(COURSE.glob("[0-9]*.md"))]
# first those of other strategies, with and without the bits of DDP
TRAINED = [one for one in EXERCISES if RUNS not in one.promises]
TRAINED.sort(key=lambda one: " sync: " not in one.change.text)
RERUN = [one for one in EXERCISES if RUNS in one.promises]
PARTS = ["Change", "Predict", "Run and compare", "What to look for"]
# DVC looks at every file for every question
pytestmark = pytest.mark.timeout(600)
of_base = cache(look)


@pytest.mark.parametrize("exercise", thorough_after(4, TRAINED), ids=str)
def test_effect_is_the_promised_one(
    exercise: Exercise, base: Path, copy: Path, stages_by_fork: str
) -> None:
    change(exercise.change, copy)
    stages = pipeline(*load_yaml(copy / "params.yaml")["gloo"]["world_sizes"])
    # what comes before has no other inputs than in the base
    first = next(i for i, s in enumerate(stages) if s[0] in exercise.touches())
    outcome = run_stages(stages_by_fork, copy, stages[first:])
    refused = "breach" in exercise.promises.values()
    assert (outcome.place, outcome.code) == ("equivalence", refused), outcome.output
    before = of_base(base, exercise.counts)
    assert broken(exercise.promises, before, look(copy, exercise.counts)) == []
    # had the change done nothing, that would show
    assert broken(exercise.promises, before, before)


@pytest.mark.parametrize("exercise", thorough_after(1, RERUN), ids=str)
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
    row = re.compile(r"^\| \d+ \| \[.+\]\((\d\d-[\w-]+\.md)\) \|", re.MULTILINE)
    assert row.findall(index) == [one.path.name for one in EXERCISES]
    for exercise in EXERCISES:
        assert re.findall(r"^## (.+)$", exercise.text, re.MULTILINE) == PARTS
        # the change is shown before the solution, the effect is not
        asked, _, _ = exercise.text.partition('<details markdown="1">\n')
        assert blocks(asked) == blocks(exercise.text)[:-1]
        assert exercise.change in blocks(asked)


def test_what_a_student_sees(
    base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(base)
    main()
    printed = capsys.readouterr().out
    found = of_base(base, True)["gloo-2"]
    assert found["state"] in printed
    assert f"{found['bytes a step']:,}" in printed
    rungs = [name.removeprefix("rung ") for name in found if name.startswith("rung ")]
    assert rungs
    assert [rung for rung in rungs if f" {rung}:" not in printed] == []
    assert max(map(len, printed.splitlines())) <= 80
