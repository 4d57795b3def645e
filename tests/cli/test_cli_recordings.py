"""``minitrain verify`` of two recordings: words, JSON, exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest
from one_line import refusal
from recorded import alter, record, rows_of, sgd, write

from minitrain.cli.main import run
from minitrain.cli.recording_words import recordings_in_words, strip
from minitrain.compare.recordings import compare_recordings


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("runs")
    plans = {
        "a": {},
        "again": {},
        "two": {"world_size": 2},
        "twin": {"twin": True},
        "rate": {"world_size": 2, "lr": lambda step: 5e-4},
        "other": {"optimizer": sgd},
    }
    return {
        name: str(record(folder / name, steps=12, every=5, **plan))
        for name, plan in plans.items()
    }


def test_equal_bits(
    runs: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("minitrain.core.progress.SECONDS_BETWEEN_LINES", 0)
    assert run(["verify", runs["a"], runs["again"]]) == 0
    printed = capsys.readouterr()
    assert printed.out == (
        "equal bits: 5 recorded steps and the end\n"
        "steps 0 to 10 and the end: ======  (= equal bits)\n"
    )
    assert "steps: 6/6 [" in printed.err


def test_within_rounding(
    runs: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", runs["a"], runs["two"], "--twin", runs["twin"]]) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith(
        "same computation within rounding: 5 recorded steps and the end; gradients at "
    )
    assert second == "steps 0 to 10 and the end: ~~~~~~  (~ within rounding)"
    assert third == "expected difference: world_size: 1 in A, 2 in B"


def test_different(runs: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", runs["a"], runs["rate"]]) == 1
    verdict, strip, *more = capsys.readouterr().out.splitlines()
    assert [verdict, strip] == [
        "different at step 0: learning rate: 0.001 against 0.0005; probable cause: B's "
        "learning rate is divided by the number of processes",
        "steps 0 to 10 and the end: xxxxxx  (x different)",
    ]
    assert "see docs/symptoms/loss-differs.md" in more


def test_json(
    runs: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", runs["a"], runs["rate"], "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert (facts["same"], facts["verdict"]) == (False, "different")
    first = [facts["first"][key] for key in ("step", "what", "why")]
    assert first == [0, "learning rate", "RATE_DIVIDED"]
    assert "divided by the number of processes" in facts["first"]["cause"]
    assert facts["page"] == "docs/symptoms/loss-differs.md"
    steps = [(step["step"], step["end"]) for step in facts["steps"]]
    assert steps == [*((step, False) for step in (0, 1, 2, 5, 10)), (11, True)]
    # and what was not recorded
    b = record(tmp_path / "b", steps=12, every=5)
    alter(b, 0, lambda row: row.update(inputs=[[]]))
    assert run(["verify", runs["a"], str(b), "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    unseen = ["no samples were recorded in B, so data is not compared"]
    assert (facts["verdict"], facts["unseen"]) == ("undecided", unseen)


MISTAKES = [
    (["{a}", "ton"], "ton: does not exist (did you mean torn?)"),
    (["{a}", "state.pt"], "state.pt: is a file; {a} is a recording, so"),
    (["{a}", "{two}", "--twin", "no"], "no: does not exist"),
    (["{a}", "empty"], "empty: is a folder; {a} is a recording, so"),
    (["{a}", "torn"], "torn: nothing recorded; "),
    (["{a}", "{two}", "--twin", "{again}"], "{again}: is no twin; "),
    (["state.pt", "state.pt", "--twin", "{twin}"], "--twin: is for two "),
]


def test_mistakes_are_one_line(
    runs: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("state.pt").touch()
    for name in ("torn", "empty"):
        Path(name).mkdir()
    Path("torn", "rank-0.jsonl").write_text('{"kind')
    for arguments, line in MISTAKES:
        words = [word.format(**runs) for word in arguments]
        assert refusal(run, ["verify", *words]).startswith(line.format(**runs))


def test_strip_of_many_steps_has_the_worst_of_several(runs: dict[str, str]) -> None:
    found = compare_recordings(Path(runs["a"]), Path(runs["rate"]))
    equal = compare_recordings(Path(runs["a"]), Path(runs["again"]))
    steps = [*equal.steps * 20, found.steps[0], *equal.steps * 3]
    line = strip(steps)
    assert line.startswith(
        f"steps 0 to 10 and the end: {'=' * 40}x{'=' * 6}  (= equal bits, x diff"
    )
    assert line.endswith(", 3 recorded steps a mark)")


def test_what_is_undecided_asks_for_a_twin(
    runs: dict[str, str], tmp_path: Path
) -> None:
    """Not one of 16 bits, which the start of a twin does not show."""
    twin = "to decide, record A with MINITRAIN_TWIN=1"
    b = record(tmp_path / "b", steps=12, every=5, world_size=2, autocast=True)
    lines = recordings_in_words(compare_recordings(Path(runs["a"]), b)).splitlines()
    assert lines[0].startswith("undecided at step 0: gradients, tensor ")
    assert not any(twin in line for line in lines)
    c = record(tmp_path / "c", steps=12, every=5, world_size=2)
    for rank in (0, 1):
        alter(c, rank, lambda row: nudge(row["gradients"]))
    lines = recordings_in_words(compare_recordings(Path(runs["a"]), c)).splitlines()
    assert lines[0].startswith("undecided at step 0: gradients, tensor ")
    assert lines[-1].startswith(twin)
    # a rank that ends early stays undecided with a twin, too
    write(c, rows_of(c, 1)[:-1], 1)
    words = recordings_in_words(compare_recordings(Path(runs["a"]), c))
    assert "B ends early" in words
    assert twin not in words


def test_a_doubt_is_not_why_two_runs_differ(
    runs: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    b = record(tmp_path / "b", steps=13, every=5, world_size=2)
    for rank in (0, 1):
        alter(b, rank, lambda row: nudge(row["gradients"]))
    assert run(["verify", runs["a"], str(b)]) == 1
    out = capsys.readouterr().out
    assert out.startswith(
        "different: what only one of them has; undecided is what both have (5 recorded "
        "steps)\nfirst exceeds the quick limits at step 0: gradients, tensor "
    )
    assert "only in B: 1 steps after the first 12" in out
    assert "see docs/" not in out
    # a sure difference is
    c = record(tmp_path / "c", steps=13, every=5, lr=lambda step: 5e-4)
    assert run(["verify", runs["a"], str(c)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("different at step 0: learning rate: ")


def nudge(entries: dict[str, dict[str, Any]]) -> None:
    """More than the quick limit, less than what rounding grows to."""
    for number, entry in enumerate(entries.values()):
        first, *others = entry["sketch"]
        sketch = [first * (1 + 1e-4 * (number % 3)), *others]
        entry.update(hash="0" * 32, sketch=sketch)


def test_alarm_is_the_first_line_and_never_exit_code_0(
    runs: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An alarm of the run itself, of which its recorded steps show nothing."""
    for kind, code in (("alarm", 1), ("note", 0)):
        folder = record(tmp_path / kind, steps=12, every=5)
        path = folder / "rank-0.jsonl"
        line = "minitrain: step 11: gradients, rank 1: unlike those of the others"
        row = {
            "rule": "gradients",
            "step": 11,
            "ranks": [1],
            "tensor": "",
            "line": line,
        }
        path.write_text(path.read_text() + json.dumps({"kind": kind, **row}) + "\n")
        for pair in ([runs["a"], str(folder)], [str(folder)] * 2):
            assert run(["verify", *pair]) == code
            first, *others = capsys.readouterr().out.splitlines()
            assert first.startswith("alarm within " if code else "equal bits: ")
            assert code == 0 or others[0].startswith("equal bits: ")


@pytest.mark.parametrize("name", ["out.\x1b[2J\nbias", "out.$_$"])
def test_names_and_lines_of_a_file_do_nothing_to_a_terminal(
    runs: dict[str, str],
    tmp_path: Path,
    name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = record(tmp_path / "odd", steps=12, every=5)
    path = folder / "rank-0.jsonl"
    alarm = {"rule": "mean", "step": 0, "ranks": [], "tensor": name, "line": name}
    text = path.read_text().replace('"out.bias"', json.dumps(name))
    path.write_text(text + json.dumps({"kind": "alarm", **alarm}) + "\n")
    assert run(["verify", str(folder), runs["a"]]) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[1].startswith("different at the start: model, tensor out.")
    assert out.count("\n") == len(out.splitlines()) == 3
    assert "\x1b" not in out
