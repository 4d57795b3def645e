import json
from pathlib import Path
from typing import Any

import pytest
from report_inputs import ladder_of, rung

from minitrain.report.breach import breach_line, refuse


def breached(**details: str) -> dict[str, Any]:
    """A ladder that breaches on these rungs only, in this order."""
    broken = {n: rung("breach", detail=detail) for n, detail in details.items()}
    return {**ladder_of(2), **broken, "verdict": "breach"}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("data", "replay_gradients"),
        ("witness_tokens", "witness_loss"),
        ("replay_gradients", "ranks"),
        ("reduced_once", "replay_parameters"),
        ("reference", "replay"),
        # the mean over the last steps is a consequence
        ("replay_gradients", "loss"),
    ],
)
def test_the_first_is_what_the_others_follow_from(first: str, second: str) -> None:
    line = breach_line({"gloo-2": breached(**{second: "b", first: "a"})})
    assert line == f"gloo-2: {first}: a; and 1 more"


def test_cause_goes_before_the_order_of_runs() -> None:
    assert breach_line({"gloo-2": ladder_of(2)}) == ""
    assert breach_line({"gloo-2": breached(ranks="a\n  b")}) == "gloo-2: ranks: a b"
    # equal causes keep the order of the ladder
    alike = breached(one_process_data="a", data_order="b")
    assert breach_line({"gloo-2": alike}) == "gloo-2: one_process_data: a; and 1 more"
    verdicts = {
        "gloo-2": breached(ranks="b", replay="c"),
        "gloo-4": breached(data="a", ranks="d"),
    }
    assert breach_line(verdicts) == "gloo-4: data: a; and 3 more"


def test_a_line_of_many_breaches_stays_short() -> None:
    names = {f"rung_{number}": "d" * 400 for number in range(12)}
    line = breach_line({f"gloo-{size}": breached(**names) for size in (2, 4, 8)})
    assert len("error: equivalence: " + line) < 240
    assert line.startswith("gloo-2: rung_0: ddd")
    assert line.endswith("; and 35 more")


def test_nothing_of_the_old_success_is_left(tmp_path: Path) -> None:
    for name in (
        *("summary.json", "manifest.json", "report.md", "report.html"),
        *("overview.svg", "scaling.png", "account.png", "losses.png", "scaling.csv"),
        *("account.csv", "losses.csv", "timing.json"),
    ):
        (tmp_path / name).write_text("success")
    ladder = breached(ranks="tensor a|b <differs>", replay="too $x^{ much$")
    rests = {"verdict": "proven", "rests_on": "bits and the witness"}
    # checks decide on a breach, not the verdict
    ladder["verdict"] = "proven"
    refuse({"gloo-1": ladder_of(1) | rests, "gloo-2": ladder}, tmp_path)
    line = "gloo-2: ranks: tensor a|b <differs>; and 1 more"
    written = {path.name: path for path in tmp_path.iterdir()}
    assert {*written} == {"summary.json", "report.md", "report.html", "scaling.png"}
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
