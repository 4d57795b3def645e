"""``minitrain verify`` of two recordings: words, JSON, exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import output_of
from one_line import refusal
from recorded import alter, record, rows_of, sgd, write

from minitrain.cli.main import run
from minitrain.cli.recording_words import recordings_in_words, strip
from minitrain.compare.recordings import compare_recordings

Runs = dict[str, Path]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("runs")
    plans = {
        "a": {},
        "again": {},
        "two": {"world_size": 2},
        "twin": {"twin": True},
        "rate": {"world_size": 2, "lr": lambda step: 5e-4},
        "other": {"optimizer": sgd},
    }
    return {name: short(folder / name, **plan) for name, plan in plans.items()}


def short(folder: Path, **plan: Any) -> Path:
    return record(folder, **{"steps": 12, "every": 5} | plan)


def words(a: Path, b: Path) -> list[str]:
    return recordings_in_words(compare_recordings(a, b)).splitlines()


def test_equal_bits(runs: Runs, monkeypatch, capsys) -> None:
    monkeypatch.setattr("minitrain.core.progress.SECONDS_BETWEEN_LINES", 0)
    assert output_of("verify", runs["a"], runs["again"]) == (
        0,
        "equal bits: 5 recorded steps and the end\n"
        "steps 0 to 10 and the end: ======  (= equal bits)\n",
    )
    assert "steps: 6/6 [" in capsys.readouterr().err


def test_within_rounding(runs: Runs) -> None:
    code, text = output_of("verify", runs["a"], runs["two"], "--twin", runs["twin"])
    assert code == 0
    first, second, third = text.splitlines()
    assert first.startswith(
        "same computation within rounding: 5 recorded steps and the end; gradients at "
    )
    assert second == "steps 0 to 10 and the end: ~~~~~~  (~ within rounding)"
    assert third == "expected difference: world_size: 1 in A, 2 in B"


def test_different(runs: Runs) -> None:
    code, text = output_of("verify", runs["a"], runs["rate"])
    assert code == 1
    verdict, marks, *more = text.splitlines()
    assert [verdict, marks] == [
        "different at step 0: learning rate: 0.001 against 0.0005; probable cause: B's "
        "learning rate is divided by the number of processes",
        "steps 0 to 10 and the end: xxxxxx  (x different)",
    ]
    assert "see docs/symptoms/loss-differs.md" in more


def test_json(runs: Runs, tmp_path: Path) -> None:
    code, text = output_of("verify", runs["a"], runs["rate"], "--json")
    facts = json.loads(text)
    assert (code, facts["same"], facts["verdict"]) == (1, False, "different")
    first = [facts["first"][key] for key in ("step", "what", "why")]
    assert first == [0, "learning rate", "RATE_DIVIDED"]
    assert "divided by the number of processes" in facts["first"]["cause"]
    assert facts["page"] == "docs/symptoms/loss-differs.md"
    steps = [(step["step"], step["end"]) for step in facts["steps"]]
    assert steps == [*((step, False) for step in (0, 1, 2, 5, 10)), (11, True)]
    # and what was not recorded
    b = short(tmp_path / "b")
    alter(b, 0, lambda row: row.update(inputs=[[]]))
    code, text = output_of("verify", runs["a"], b, "--json")
    facts = json.loads(text)
    assert (code, facts["verdict"]) == (1, "undecided")
    assert facts["unseen"] == ["no samples were recorded in B, so data is not compared"]


MISTAKES = [
    (["{a}", "ton"], "ton: does not exist (did you mean torn?)"),
    (["{a}", "state.pt"], "state.pt: is a file; {a} is a recording, so"),
    (["{a}", "{two}", "--twin", "no"], "no: does not exist"),
    (["{a}", "empty"], "empty: is a folder; {a} is a recording, so"),
    (["{a}", "torn"], "torn: nothing recorded; "),
    (["{a}", "{two}", "--twin", "{again}"], "{again}: is no twin of "),
    (["state.pt", "state.pt", "--twin", "{twin}"], "--twin: is for two "),
]


def test_mistakes_are_one_line(runs: Runs, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("state.pt").touch()
    for name in ("torn", "empty"):
        Path(name).mkdir()
    Path("torn", "rank-0.jsonl").write_text('{"kind')
    for arguments, line in MISTAKES:
        given = [word.format(**runs) for word in arguments]
        assert refusal(run, ["verify", *given]).startswith(line.format(**runs))


def test_strip_of_many_steps_has_the_worst_of_several(runs: Runs) -> None:
    found = compare_recordings(runs["a"], runs["rate"])
    equal = compare_recordings(runs["a"], runs["again"])
    line = strip([*equal.steps * 20, found.steps[0], *equal.steps * 3])
    assert line.startswith(
        f"steps 0 to 10 and the end: {'=' * 40}x{'=' * 6}  (= equal bits, x diff"
    )
    assert line.endswith(", 3 recorded steps a mark)")


def nudge(folder: Path) -> None:
    """More than the quick limit, less than what rounding grows to."""

    def change(row: dict[str, Any]) -> None:
        for number, entry in enumerate(row["gradients"].values()):
            first, *others = entry["sketch"]
            sketch = [first * (1 + 1e-4 * (number % 3)), *others]
            entry.update(hash="0" * 32, sketch=sketch)

    for rank in (0, 1):
        alter(folder, rank, change)


def test_what_is_undecided_asks_for_a_twin(runs: Runs, tmp_path: Path) -> None:
    """Not one of 16 bits, which the start of a twin does not show."""
    twin = "to decide, record A with MINITRAIN_TWIN=1"
    b = short(tmp_path / "b", world_size=2, autocast=True)
    lines = words(runs["a"], b)
    assert lines[0].startswith("undecided at step 0: gradients, tensor ")
    assert not any(twin in line for line in lines)
    c = short(tmp_path / "c", world_size=2)
    nudge(c)
    lines = words(runs["a"], c)
    assert lines[0].startswith("undecided at step 0: gradients, tensor ")
    assert lines[-1].startswith(twin)
    # a rank that ends early stays undecided with a twin, too
    write(c, rows_of(c, 1)[:-1], 1)
    lines = words(runs["a"], c)
    assert any(line.startswith("B ends early") for line in lines)
    assert not any(twin in line for line in lines)


def test_a_doubt_is_not_why_two_runs_differ(runs: Runs, tmp_path: Path) -> None:
    b = short(tmp_path / "b", steps=13, world_size=2)
    nudge(b)
    code, text = output_of("verify", runs["a"], b)
    assert code == 1
    assert text.startswith(
        "different: what only one of them has; undecided is what both have (5 recorded "
        "steps)\nfirst exceeds the quick limits at step 0: gradients, tensor "
    )
    assert "only in B: 1 steps after the first 12" in text
    assert "see docs/" not in text
    # a sure difference is
    c = short(tmp_path / "c", steps=13, lr=lambda step: 5e-4)
    assert words(runs["a"], c)[0].startswith("different at step 0: learning rate: ")


def with_finding(folder: Path, kind: str, **of_rule: Any) -> Path:
    """Write a finding of the recorder's own rules."""
    finding = {"kind": kind, "step": 0, "ranks": [], **of_rule}
    write(folder, [*rows_of(folder), finding])
    return folder


@pytest.mark.parametrize(("kind", "code"), [("alarm", 1), ("note", 0)])
def test_alarm_is_the_first_line_and_never_exit_code_0(
    runs: Runs, tmp_path: Path, kind: str, code: int
) -> None:
    """An alarm of the run itself, of which its recorded steps show nothing."""
    of_rule = {"rule": "gradients", "tensor": "", "line": "minitrain: step 11: unlike"}
    b = with_finding(short(tmp_path / "b"), kind, **of_rule)
    for a in (runs["a"], b):
        found, text = output_of("verify", a, b)
        assert found == code
        first, second, *_ = text.splitlines()
        assert first.startswith("alarm within " if code else "equal bits: ")
        assert code == 0 or second.startswith("equal bits: ")


@pytest.mark.parametrize("name", ["out.\x1b[2J\nbias", "out.$_$"])
def test_names_and_lines_of_a_file_do_nothing_to_a_terminal(
    runs: Runs, tmp_path: Path, name: str
) -> None:
    folder = short(tmp_path / "odd")
    path = folder / "rank-0.jsonl"
    path.write_text(path.read_text().replace('"out.bias"', json.dumps(name)))
    with_finding(folder, "alarm", rule="mean", tensor=name, line=name)
    code, text = output_of("verify", folder, runs["a"])
    assert code == 1
    assert text.splitlines()[1].startswith("different at the start: model, tensor out.")
    assert text.count("\n") == len(text.splitlines()) == 3
    assert "\x1b" not in text
