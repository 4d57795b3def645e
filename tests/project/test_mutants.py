"""Every injected fault is caught by its stated catcher.

One for each catcher (a stage and rung, or a file of tests); the others are thorough.
"""

import json
import re
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from forks import pipeline, run_stages, run_test
from pages import Edit
from project import MADE, ROOT, copy_project, set_params
from test_docs import require_marked, table
from test_stage_faults import breached


@dataclass(frozen=True)
class Mutant:
    """One fault; ``params`` are needed in addition to the small parameters.

    ``caught_by`` is a stage ("shard"), the equivalence stage and a rung that breaches
    there ("equivalence: witness_loss"), or a test ("tests/core/test_io.py::test_name").
    """

    name: str
    what: str
    caught_by: str
    edits: tuple[Edit, ...]
    params: dict[str, Any]

    @property
    def is_for_a_test(self) -> bool:
        """True if a named test must catch it, else the pipeline."""
        return self.caught_by.startswith("tests/")


def read_mutants(name: str) -> list[Mutant]:
    """Read mutants, separated by an empty line::

    # name: what it does
    file
    what catches it
    - a line to be replaced; several are consecutive in the file
    + a line in its place, if any
    another file, followed by its lines, if any
    = parameters that it needs, if any, as JSON
    """
    found = []
    for text in (ROOT / "tests/support" / name).read_text().split("\n\n"):
        title, file, caught_by, *lines = text.strip("\n").split("\n")
        params = json.loads(lines.pop()[2:]) if lines[-1].startswith("= ") else {}
        groups = re.split(r"^([^-+].*)\n", "\n".join(lines), flags=re.MULTILINE)
        files = [file, *groups[1::2]]
        edits = map(_edit, files, groups[::2])
        mutant, _, what = title.removeprefix("# ").partition(": ")
        found.append(Mutant(mutant, what, caught_by, tuple(edits), params))
    return found


def _edit(file: str, text: str) -> Edit:
    lines = text.rstrip("\n").split("\n")
    old, new = ([x[2:] for x in lines if x.startswith(sign)] for sign in "-+")
    return Edit(file, "\n".join(old), "\n".join(new))


# what run and replay share, then what a unit test sees
MUTANTS = [*read_mutants("pipeline_mutants.txt"), *read_mutants("unit_mutants.txt")]
# several epochs, the last batch of each smaller, and samples longer than the block
PARAMS = {"corpus.num_sentences": 29, "model.block_size": 48, "gloo.world_sizes": [2]}
# the last of each catcher
OF_EACH = {mutant.caught_by.partition("::")[0]: mutant for mutant in MUTANTS}
# what the precisions and optimizers that mutants need must do without them
SETTINGS = {str(m.params): m.params for m in MUTANTS if not m.is_for_a_test}


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """Replaces the shared fixture: a mutant may leave what others remove."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_project(tmp_path_factory.mktemp("mutants") / "base", PARAMS)


@pytest.fixture
def injected(base: Path, tmp_path: Path, mutant: Mutant) -> Path:
    """A copy of the project with the mutant."""
    copy = Path(shutil.copytree(base, tmp_path / "project"))
    set_params(copy, mutant.params)
    for edit in mutant.edits:
        edit.make(copy)
    return copy


def case(mutant: Mutant, tried: bool) -> Any:
    marks = [] if tried else [pytest.mark.thorough]
    return pytest.param(mutant, id=mutant.name, marks=marks)


TRIED = {str(mutant.params) for mutant in OF_EACH.values()}
UNHARMED = [
    case(Mutant(f"healthy-{number}", "", "", (), params), setting in TRIED)
    for number, (setting, params) in enumerate(SETTINGS.items())
]


@pytest.mark.parametrize("mutant", UNHARMED)
def test_healthy_project_passes(stages_by_fork: str, injected: Path) -> None:
    """With every setting that a mutant needs: else a refusal would prove nothing."""
    outcome = run_stages(stages_by_fork, injected, pipeline(2))
    assert (outcome.place, outcome.code) == ("equivalence", 0), outcome.output
    assert breached(injected) == set()


@pytest.mark.parametrize(
    "mutant", [case(mutant, mutant in OF_EACH.values()) for mutant in MUTANTS]
)
def test_mutant_is_caught(
    stages_by_fork: str, injected: Path, made_run: Path, mutant: Mutant
) -> None:
    if mutant.is_for_a_test:
        # with the files between stages as the healthy project makes them
        made = {MADE: str(made_run)}
        outcome = run_test(stages_by_fork, injected, mutant.caught_by, **made)
    else:
        outcome = run_stages(stages_by_fork, injected, pipeline(2))
    stage, _, rung = mutant.caught_by.partition(": ")
    assert (outcome.place, outcome.code) == (stage, 1), outcome.output[-2000:]
    if mutant.is_for_a_test:
        # it failed, and not while it was collected or set up
        assert "\nFAILED " in outcome.output, outcome.output[-2000:]
    else:
        assert outcome.line
        assert not rung or rung in breached(injected), outcome.line


def test_mutants_can_be_injected_and_are_in_the_docs() -> None:
    """Their old texts stand in their files once: this is quick, so it comes with every
    change of a line that a mutant spoils.
    """
    edits = [(mutant.name, edit) for mutant in MUTANTS for edit in mutant.edits]
    counts = [(ROOT / edit.file).read_text().count(edit.old) for _, edit in edits]
    assert [one for one, n in zip(edits, counts, strict=True) if n != 1] == []
    assert [name for name, edit in edits if edit.old == edit.new] == []
    assert len(MUTANTS) >= 150
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert len({(m.edits, str(m.params)) for m in MUTANTS}) == len(MUTANTS)
    caught = Counter(
        ("/".join(m.edits[0].file.split("/")[:-1][:2]), m.is_for_a_test)
        for m in MUTANTS
    )
    rows = [
        f"| `{place}` | {caught[place, False]} | {caught[place, True]} |"
        for place in sorted({place for place, _ in caught})
    ]
    columns = ["injected in", "caught by a stage", "caught by a test"]
    require_marked("docs/developers/mutants.md", "mutants", table(columns, rows))
