"""The five lines at the end of `make`, for every kind of result."""

import json
import re
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from report_inputs import facts, ladder_of, published, rung

from minitrain.cli.main import run
from minitrain.cli.summary import answer
from minitrain.core.errors import UserError
from minitrain.core.files import write_json
from minitrain.report.breach import refuse
from minitrain.report.facts import Facts
from minitrain.report.published import summary_lines

WITNESSED = "proven: bits of a one-process replay, a witness agrees"


def measured(world_sizes: list[int], *verdicts: str, **changes: Any) -> Facts:
    """Facts of runs that are proven, or have the given verdicts."""
    told = verdicts or ("proven",) * len(world_sizes)
    ladders = {
        f"gloo-{w}": ladder_of(w) | {"verdict": verdict}
        for w, verdict in zip(world_sizes, told, strict=True)
    }
    return facts(world_sizes, noise=0.001, equivalence=ladders, **changes)


def with_speeds(all_cores: int, one: int) -> Facts:
    speeds = {"one_process_all_cores": all_cores, "one_process": one}
    return measured([1, 2], speeds=speeds)


def said(folder: Path, found: Facts) -> dict[str, str]:
    """The five lines by their first word; each fits a terminal."""
    ok, lines = summary_lines(published(folder, found))
    assert ok
    # the last contains a path of the test
    assert max(map(len, lines[:-1])) <= 80
    words = dict(line.split(maxsplit=1) for line in lines)
    assert list(words) == ["Bits", "Speed", "Time", "Loss", "Report"]
    return words


def test_lines_beside_those_of_the_golden_texts(tmp_path: Path) -> None:
    found = said(tmp_path, with_speeds(16_400, 16_400))
    assert found["Report"] == str(tmp_path / "report.html")
    alike = "gloo-2: no difference to one process or all cores, floor 0.2 %"
    assert found["Speed"] == alike
    speed = "gloo-2: 1.64 times one process, no difference to all cores, floor 0.2 %"
    assert said(tmp_path, with_speeds(16_400, 10_000))["Speed"] == speed
    bits = f"all 3 runs: {WITNESSED}"
    assert said(tmp_path, measured([1, 2, 4]))["Bits"] == bits
    mixed = measured([1, 2, 4], "proven", "proven", "undecided")
    bits = "gloo-4 undecided; gloo-1, gloo-2 proven"
    assert said(tmp_path, mixed)["Bits"] == bits


def test_breach_is_said_in_the_place_of_the_result(tmp_path: Path) -> None:
    published(tmp_path, measured([1, 2]))
    detail = "tensor blocks.0.attention.qkv.weight, element 3: 0x1p-3 and 0x1p-2" * 2
    broken = {"gloo-2": ladder_of(2) | {"ranks": rung("breach", detail=detail)}}
    refuse(broken, tmp_path)
    ok, lines = summary_lines(tmp_path)
    assert not ok
    assert lines[0].startswith("Breach: gloo-2: ranks: tensor blocks.0.")
    assert max(map(len, lines[:-1])) <= 80
    assert lines[-1] == f"No result was published; see {tmp_path / 'report.md'}."


def test_file_that_is_missing_or_of_an_older_version_is_named(tmp_path: Path) -> None:
    path = published(tmp_path, measured([1, 2])) / "manifest.json"
    older = {k: v for k, v in json.loads(path.read_text()).items() if "over_" not in k}
    write_json(path, older)
    with pytest.raises(UserError, match=r"manifest\.json: damaged, or not of this ver"):
        summary_lines(tmp_path)
    path.unlink()
    with pytest.raises(OSError, match=re.escape("manifest.json")):
        summary_lines(tmp_path)


def test_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "metrics").mkdir()
    published(tmp_path / "metrics", measured([2]))
    monkeypatch.chdir(tmp_path)
    assert run(["summary"]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[-1] == "Report metrics/report.html"
    assert run(["summary", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"ok": True, "lines": text.splitlines()}
    write_json(tmp_path / "metrics/summary.json", {"breach": "gloo-2: x"})
    assert run(["summary"]) == 1
    assert capsys.readouterr().out.startswith("Breach: gloo-2: x.\n")
    (tmp_path / "metrics/summary.json").unlink()
    with pytest.raises(OSError, match=r"metrics/summary\.json"):
        answer(Namespace())
