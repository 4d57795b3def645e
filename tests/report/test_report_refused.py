"""After a breach: one line that names it, and nothing left of the last success."""

import json
from pathlib import Path
from typing import Any

import pytest
from project import PARAMS_FILE
from report_inputs import CONTRACT, ladder_of, rung

from minitrain.core.params import load_params
from minitrain.proof.words import CHANGES
from minitrain.report.refused import HINT, breach_line, refuse
from minitrain.report.render import write_marked

PARAMS = load_params(PARAMS_FILE)
PREFIX = "error: equivalence: "


def breached(**details: str) -> dict[str, Any]:
    """A ladder that breaches on these rungs only, in this order."""
    broken = {n: rung("breach", detail=detail) for n, detail in details.items()}
    return {**ladder_of(2), **broken, "verdict": "breach"}


def test_without_a_breach_there_is_no_line() -> None:
    assert breach_line({"gloo-1": ladder_of(1), "gloo-2": ladder_of(2)}) == ""


def test_one_breach_is_named_alone() -> None:
    verdicts = {"gloo-1": ladder_of(1), "gloo-2": breached(ranks="tensor x differs")}
    assert breach_line(verdicts) == "gloo-2: ranks: tensor x differs"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("data", "replay_gradients"),
        ("one_process_data", "data_order"),
        ("witness_tokens", "witness_loss"),
        ("witness_loss", "one_process_gradients"),
        ("replay_gradients", "ranks"),
        ("reduced_once", "replay_parameters"),
        ("replay_gradients", "replay_buffers"),
        ("reference", "replay"),
        # the mean over the last steps is a consequence
        ("replay_gradients", "loss"),
    ],
)
def test_the_first_is_what_the_others_follow_from(first: str, second: str) -> None:
    if first == "one_process_data":
        # alike in their cause: as the ladder has them
        ladder = breached(one_process_data="a", data_order="b")
    else:
        ladder = breached(**{second: "b", first: "a"})
    line = breach_line({"gloo-2": ladder})
    assert line == f"gloo-2: {first}: a; and 1 more: gloo-2 ({second})"


def test_cause_goes_before_the_order_of_runs() -> None:
    verdicts = {
        "gloo-2": breached(ranks="b", replay="c"),
        "gloo-4": breached(data="a", ranks="d"),
    }
    assert breach_line(verdicts) == (
        "gloo-4: data: a; and 3 more: gloo-2 (ranks, replay), gloo-4 (ranks)"
    )


def test_a_loss_that_is_no_mean_over_the_targets_is_suspected() -> None:
    verdicts = {"gloo-2": breached(one_process="far", one_process_gradients="wide")}
    assert breach_line(verdicts) == (
        f"gloo-2: one_process_gradients: wide{HINT}; and 1 more: gloo-2 (one_process)"
    )
    assert "the loss may not be the mean over the counted targets" in HINT
    # nor where a buffer changes that may steer it
    detail = f"tensor w is 0.1 off; without seen, which {CHANGES}"
    steered = {"gloo-2": breached(one_process=detail)}
    assert breach_line(steered) == f"gloo-2: one_process: {detail}"
    # the data are no matter of the loss
    verdicts["gloo-4"] = breached(ranks="tensor x differs")
    assert HINT not in breach_line(verdicts)


@pytest.mark.parametrize("length", [5, 60, 150, 400])
@pytest.mark.parametrize("only", ["one_process", "rung"])
def test_a_line_stays_short_whatever_breaches(length: int, only: str) -> None:
    names = {f"{only}_{number}": "d" * length for number in range(12)}
    verdicts = {f"gloo-{size}": breached(**names) for size in (2, 4, 8)}
    line = breach_line(verdicts)
    assert len(PREFIX + line) < 240
    assert line.startswith(f"gloo-2: {only}_0: ddd")
    assert "; and 35 more" in line
    assert (HINT in line) == (only == "one_process")


def test_a_detail_of_several_lines_becomes_one() -> None:
    assert breach_line({"gloo-2": breached(ranks="a\n  b")}) == "gloo-2: ranks: a b"
    assert breach_line({"gloo-2": breached(ranks="")}) == "gloo-2: ranks: no detail"


README = """# Title

<!-- result -->
| 2 processes | 16,923 | proven |
<!-- /result -->
between
<!-- made-by -->
- made by code 123
<!-- /made-by -->
end
"""


def publish(folder: Path) -> tuple[Path, Path]:
    """The folders with what a success left there."""
    metrics, readme = folder / "metrics", folder / "README.md"
    metrics.mkdir()
    for name in ("summary.json", "manifest.json", "report.md", "report.html"):
        (metrics / name).write_text("success")
    pictures = ("overview.svg", "scaling.png", "account.png", "losses.png")
    for name in (*pictures, "scaling.csv"):
        (metrics / name).write_text("success")
    readme.write_text(README)
    return metrics, readme


def test_nothing_of_the_old_success_is_left(tmp_path: Path) -> None:
    metrics, readme = publish(tmp_path)
    ladder = breached(ranks="tensor a|b <differs>", replay="too $x^{ much$")
    rests = {"verdict": "proven", "rests_on": "bits and the witness"}
    verdicts = {"gloo-1": ladder_of(1) | rests, "gloo-2": ladder}
    refuse(verdicts, PARAMS, metrics, readme)
    line = "gloo-2: ranks: tensor a|b <differs>; and 1 more: gloo-2 (replay)"
    written = {path.name: path for path in metrics.iterdir()}
    assert {*written} == {
        "summary.json",
        "manifest.json",
        "report.md",
        "report.html",
        "scaling.png",
    }
    for path in written.values():
        assert b"success" not in path.read_bytes()
    assert written["scaling.png"].read_bytes().startswith(b"\x89PNG")
    assert json.loads(written["summary.json"].read_text()) == {
        "breach": line,
        "gloo-1": {"verdict": "proven"},
        "gloo-2": {"verdict": "breach"},
    }
    markdown = written["report.md"].read_text()
    assert r"gloo-2: ranks: tensor a\|b \<differs\>; and 1 more" in markdown
    assert "| gloo-2 | replay | too $x^{ much$ |" in markdown
    assert "| gloo-1 | proven | bits and the witness |" in markdown
    html = written["report.html"].read_text()
    assert "tensor a|b &lt;differs&gt;" in html


def test_picture_takes_any_text(tmp_path: Path) -> None:
    metrics, readme = publish(tmp_path)
    refuse({"gloo-2": breached(ranks="$x^{ much$")}, PARAMS, metrics, readme)
    assert (metrics / "scaling.png").read_bytes().startswith(b"\x89PNG")


def test_manifest_of_a_breach_keeps_the_contract(tmp_path: Path) -> None:
    metrics, readme = publish(tmp_path)
    refuse({"gloo-2": breached(ranks="x differs")}, PARAMS, metrics, readme)
    manifest = json.loads((metrics / "manifest.json").read_text())
    assert list(manifest)[: len(CONTRACT)] == CONTRACT
    assert manifest["byte_equivalent"] is False
    assert manifest["verdict"] == "breach"
    assert manifest["verdicts"] == {"gloo-2": {"verdict": "breach", "rests_on": None}}
    assert manifest["seed"] == PARAMS.train.seed
    assert manifest["world_size"] == max(PARAMS.gloo.world_sizes)
    assert manifest["lesson_notes"] == "Breach: gloo-2: ranks: x differs."
    for key in CONTRACT:
        if "tokens" in key or "allreduce" in key or key == "model_params":
            assert manifest[key] is None


def test_a_run_is_a_breach_by_its_rungs_whatever_it_says(tmp_path: Path) -> None:
    metrics, readme = publish(tmp_path)
    ladder = breached(ranks="x differs") | {"verdict": "proven"}
    refuse({"gloo-1": ladder_of(1), "gloo-2": ladder}, PARAMS, metrics, readme)
    summary = json.loads((metrics / "summary.json").read_text())
    assert summary["gloo-2"]["verdict"] == "breach"
    assert summary["gloo-1"]["verdict"] == "undecided"


def test_readme_says_breach_between_its_marks_alone(tmp_path: Path) -> None:
    metrics, readme = publish(tmp_path)
    refuse({"gloo-2": breached(ranks="x differs")}, PARAMS, metrics, readme)
    text = readme.read_text()
    assert text.startswith("# Title\n\n<!-- result -->\n**Breach: gloo-2: ranks: x")
    assert text.endswith(
        "<!-- /result -->\nbetween\n<!-- made-by -->\n<!-- /made-by -->\nend\n"
    )
    assert "16,923" not in text


@pytest.mark.parametrize(
    "text",
    ["# No marks\n", "<!-- result -->\nnever closed\n", "<!-- /result -->\n", None],
)
def test_a_readme_without_marks_is_left_alone(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "README.md"
    if text is not None:
        path.write_text(text)
    write_marked(path, "result", "new\n")
    assert path.exists() == (text is not None)
    assert text is None or path.read_text() == text
