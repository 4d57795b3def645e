"""``minitrain show``: the words and the page of recordings."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import output_of
from torch import nn

import minitrain
from minitrain.cli.recording_words import times_compared
from minitrain.cli.show import straggler
from minitrain.core.errors import UserError
from minitrain.recording.times import TimesCompared


def trained(folder: Path, steps: int = 12, lr: float = 0.01) -> Path:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    with minitrain.record(model, optimizer, folder, every=5) as recorder:
        for _ in range(steps):
            loss = model(torch.randn(3, 4)).square().sum()
            recorder.loss(loss)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two recordings, ``a`` and ``b``, of other learning rates."""
    folder = tmp_path_factory.mktemp("shown")
    trained(folder / "a")
    trained(folder / "b", lr=0.02)
    return folder


def test_one_recording(folder: Path) -> None:
    code, text = output_of("show", folder / "a")
    assert code == 0
    first, *lines = text.splitlines()
    start = rf"{folder}/a: 1 rank, 12 steps, 5 recorded; loss [\d.]+ at step 0, "
    assert re.match(rf"{start}[\d.e-]+ at step 10$", first)
    assert lines[0] == "no alarm, no note"
    assert re.match(
        r"a step takes [\d.]+ ms \(\d steps timed\): [\d,]+ samples", lines[1]
    )
    assert lines[-2].split()[:2] == ["step", "100.0"]
    assert lines[-1].startswith("slow rank: undecided: ")


def test_rank_that_was_killed_is_named(tmp_path: Path) -> None:
    """It closed neither file; one that ended by an error closed its times."""
    trained(tmp_path / "run")
    assert "no end" not in output_of("show", tmp_path / "run")[1]
    rows, times = (tmp_path / "run" / name for name in ("rank-0.jsonl", "times-0.csv"))
    rows.write_text(rows.read_text().rpartition('{"kind":"end"')[0])
    first = output_of("show", tmp_path / "run")[1].splitlines()[0]
    assert first.endswith("; no end of rank 0: ended early after 12 steps")
    times.write_text(times.read_text().removesuffix("# end\n"))
    first = output_of("show", tmp_path / "run")[1].splitlines()[0]
    assert first.endswith("; no end of rank 0: killed, or at work, after 12 steps")


def test_page_is_one_file(folder: Path) -> None:
    page = folder / "page.html"
    printed = output_of("show", folder / "a", folder / "b", "--html", page)[1]
    assert printed.endswith(f"written to {page}\n")
    assert "\ntime: " in printed
    text = page.read_text()
    # the parts of two ranks, and two losses
    assert text.count('role="img"') == 3
    assert text.count("<polyline") == 2
    # the components of the longest rank fill the width
    widths = map(float, re.findall(r'<i style="width: ([\d.]+)%', text))
    assert sum(widths) == pytest.approx(200, abs=0.1)
    assert not re.findall(r'(?:src|href)="(?!data:|#)[^"]+"', text)
    assert "different at step 0: learning rate" in text


def test_page_that_cannot_be_written(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"page\.txt: must be a file and end in \.html"):
        output_of("show", folder / "a", "--html", tmp_path / "page.txt")
    assert [*tmp_path.rglob("*")] == []


def test_numbers_that_json_lacks_are_null(tmp_path: Path) -> None:
    trained(tmp_path / "a", steps=8, lr=math.inf)
    facts = json.loads(output_of("show", tmp_path / "a", "--json")[1])
    assert [one["loss"] for one in facts["losses"]][1:] == [None] * 3


SLOW = {"rank": 1, "excess_ms": 12.25}
FOUND = {"slow": [SLOW], "undecided": None, "others_wait_ms": 11.5, "visible_ms": 2.0}


def test_slow_rank_and_its_part_are_named() -> None:
    facts: dict[str, Any] = {"stragglers": FOUND, "late_part": "data_ms"}
    assert straggler(facts) == (
        "rank 1 is 12.2 ms late in each step, in data, and what is between steps; the "
        "others wait 11.5 ms"
    )
    facts["stragglers"] = FOUND | {"slow": []}
    none = "no rank is slow: one whose own work takes 2.0 ms more would show"
    assert straggler(facts) == none


def test_times_of_two_recordings_in_words() -> None:
    parts = {"wait_ms": 9.0, "data_ms": -1.0}
    found = TimesCompared(40.0, 50.0, 1.5, parts, one_host=False)
    assert times_compared(found) == (
        "time: a step takes 40.0 ms in A, 50.0 ms in B (on different hosts), 25.0 % "
        "longer: wait for other ranks +9.0 ms, data, and what is between steps -1.0 ms "
        "(noise 1.5 ms)"
    )
    none = TimesCompared(0.0, 1.0, 0.5, {}, one_host=True)
    assert times_compared(none).startswith(
        "time: a step takes 0.0 ms in A, 1.0 ms in B"
    )
    same = TimesCompared(40.0, 41.0, 1.5, {}, one_host=True)
    assert times_compared(same) == (
        "time: no difference is seen: a step takes 40.0 ms in A, 41.0 ms in B, noise "
        "1.5 ms"
    )
