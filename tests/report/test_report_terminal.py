"""Five lines at the end of `make`: right words for every shape of result."""

import json
import re
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from report_inputs import (
    facts,
    ladder_of,
    on_two_hosts,
    provenance_of,
    published,
    rung,
    timing_of,
)

from minitrain.cli.main import run
from minitrain.cli.summary import answer
from minitrain.core.errors import UserError
from minitrain.core.files import write_json
from minitrain.report.breach import refuse
from minitrain.report.facts import Facts
from minitrain.report.terminal import summary_lines

WITNESSED = "proven: bits of a one-process replay, a witness agrees"


def measured(world_sizes: list[int], **changes: Any) -> Facts:
    """Facts whose runs are proven, or have ``verdict``."""
    verdict = changes.pop("verdict", "proven")
    ladders = {f"gloo-{w}": ladder_of(w) | {"verdict": verdict} for w in world_sizes}
    return facts(world_sizes, **{"equivalence": ladders, **changes})


def said(folder: Path, found: Facts) -> dict[str, str]:
    """The five lines, by their first word; none is longer than a terminal."""
    ok, lines = summary_lines(published(folder, found))
    assert ok
    # the last has the path of a folder of the tests
    assert max(map(len, lines[:-1])) <= 80
    words = dict(line.split(maxsplit=1) for line in lines)
    assert list(words) == ["Bits", "Speed", "Time", "Loss", "Report"]
    return words


def test_five_lines_say_bits_speed_time_loss_and_where_the_report_is(
    tmp_path: Path,
) -> None:
    found = measured([1, 2], speeds={"one_process_all_cores": 16_400}, noise=0.001)
    lines = said(tmp_path, found)
    # 16,400 over 10,000, and over itself; 84 of 100 ms are computing, 10 exposed
    speed = "gloo-2: 1.64 times one process, no difference to all cores, floor 0.2 %"
    assert lines == {
        "Bits": f"gloo-1, gloo-2: {WITNESSED}",
        "Speed": speed,
        "Time": "gloo-2: computing 84.0 % of steps, exposed communication 10.0 %",
        # 5.5 * exp(-99 / 40) is 0.463; the runs are 2e-7 apart all along
        "Loss": "5.50 at the first step, 0.46 at the last; "
        "losses at most 2.0e-07 apart",
        "Report": str(tmp_path / "report.html"),
    }


@pytest.mark.parametrize(
    ("all_cores", "one", "words"),
    [
        (20_000, 10_000, "1.64 times one process, 0.82 times all cores"),
        (16_400, 16_400, "no difference to one process or all cores"),
        (13_000, 16_400, "1.26 times all cores, no difference to one process"),
    ],
)
def test_speed_says_what_is_decided(
    tmp_path: Path, all_cores: int, one: int, words: str
) -> None:
    speeds = {"one_process_all_cores": all_cores, "one_process": one}
    line = said(tmp_path, measured([1, 2], speeds=speeds, noise=0.001))["Speed"]
    assert line.startswith(f"gloo-2: {words}, floor 0.")


def test_busy_machine_has_no_speed(tmp_path: Path) -> None:
    taken = provenance_of(1, load={"others_share": 0.4, "steal_share": 0.0})
    line = said(tmp_path, measured([1, 2], baseline_provenance=taken))["Speed"]
    assert line == "gloo-2: busy machine: others took 40 % of its cores"


@pytest.mark.parametrize("world_sizes", [[1], [4], [1, 2, 4]])
def test_world_sizes_without_two(tmp_path: Path, world_sizes: list[int]) -> None:
    lines = said(tmp_path, measured(world_sizes))
    largest = f"gloo-{max(world_sizes)}"
    assert lines["Speed"].startswith(f"{largest}: ")
    assert lines["Time"].startswith(f"{largest}: computing ")
    assert ("exposed" in lines["Time"]) == (world_sizes != [1])
    assert ("apart" in lines["Loss"]) == (len(world_sizes) > 1)
    named = "all 3 runs" if len(world_sizes) == 3 else largest
    assert lines["Bits"] == f"{named}: {WITNESSED}"


def test_bits_are_called_what_the_verdict_is(tmp_path: Path) -> None:
    for verdict, words in {
        "replay only": "replay only: bits of a one-process replay, no witness",
        "undecided": "undecided: bits were not promised, or not compared",
    }.items():
        lines = said(tmp_path, measured([1, 2], verdict=verdict))
        assert lines["Bits"] == f"gloo-1, gloo-2: {words}"
    proven, other = {"verdict": "proven"}, {"verdict": "undecided"}
    runs = {"gloo-1": proven, "gloo-2": proven, "gloo-4": other}
    ladders = {run: ladder_of(int(run[5:])) | told for run, told in runs.items()}
    lines = said(tmp_path, facts([1, 2, 4], equivalence=ladders))
    assert lines["Bits"] == "gloo-4 undecided; gloo-1, gloo-2 proven"


@pytest.mark.parametrize(
    ("account", "words"),
    [
        ({"closed": False, "sum_ms": 110.0}, "parts add up to 110.0 ms against 98.0"),
        ({"closed": False, "sum_ms": 80.0}, "parts add up to 80.0 ms of 98.0 ms"),
        ({"closed": None}, "a part of a step was not measured"),
    ],
)
def test_account_that_does_not_close_explains_nothing(
    tmp_path: Path, account: dict[str, Any], words: str
) -> None:
    timing = timing_of(2)
    timing["account"] |= account
    line = said(tmp_path, measured([2], timing={"gloo-2": timing}))["Time"]
    assert line.startswith(f"gloo-2: not explained: {words}")


def test_run_on_two_hosts_is_named_as_such(tmp_path: Path) -> None:
    lines = said(tmp_path, on_two_hosts(measured([1, 2]), "gloo-2"))
    assert lines["Time"].startswith("gloo-2 (2 hosts): computing ")
    # the arms of the baseline were on one
    assert lines["Speed"].startswith("one host: 1.6")


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


@pytest.mark.parametrize(
    "name", ["summary.json", "manifest.json", "timing.json", "losses.csv"]
)
def test_file_that_is_missing_or_cut_is_named(tmp_path: Path, name: str) -> None:
    path = published(tmp_path, measured([1, 2])) / name
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=re.escape(f"{path}: damaged, or not of this")):
        summary_lines(tmp_path)
    path.unlink()
    with pytest.raises(OSError, match=re.escape(name)):
        summary_lines(tmp_path)


def test_manifest_of_an_older_version_is_named(tmp_path: Path) -> None:
    path = published(tmp_path, measured([1, 2])) / "manifest.json"
    older = {k: v for k, v in json.loads(path.read_text()).items() if "over_" not in k}
    write_json(path, older)
    with pytest.raises(UserError, match=r"manifest\.json: damaged, or not of this ver"):
        summary_lines(tmp_path)


def test_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    published(tmp_path / "mine", measured([2]))
    monkeypatch.chdir(tmp_path)
    assert run(["summary", "--metrics", "mine"]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[-1] == "Report mine/report.html"
    assert run(["summary", "--metrics", "mine", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"ok": True, "lines": text.splitlines()}
    write_json(tmp_path / "mine/summary.json", {"breach": "gloo-2: x"})
    assert run(["summary", "--metrics", "mine"]) == 1
    assert capsys.readouterr().out.startswith("Breach: gloo-2: x.\n")
    with pytest.raises(OSError, match=r"metrics/summary\.json"):
        answer(Namespace(metrics=Path("metrics")))
