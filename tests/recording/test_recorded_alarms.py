"""What the ranks hear while the run goes on, and how it ends."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from project import ROOT
from recorded_loops import Net, batch, loop, loss_of, steps_of, train_alone
from thorough import thorough_after
from torch import nn
from waiting import GENEROUS_S, wait_for

import minitrain
from minitrain.comm.groups import distributed, wrap_for_ddp
from minitrain.core.errors import EvidenceError, UserError
from minitrain.recording.format import read_recording


def apart(folder: Path, options: dict[str, Any], at: int = 1) -> tuple[str, int]:
    """Rank 1 changes a weight of its own after a step: the error, and when it came."""
    done = []
    with distributed() as (rank, _):
        torch.manual_seed(rank)
        model = wrap_for_ddp(Net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def change(step: int) -> None:
            done.append(step)
            if rank == 1 and step == at:
                with torch.no_grad():
                    model.module.last.weight[0, 0] += 1

        try:
            with minitrain.record(model, optimizer, folder, every=3, **options):
                loop(model, optimizer, 6, rank=rank, after=change)
        except EvidenceError as error:
            return str(error), len(done)
    return "", len(done)


def test_what_is_not_seen_is_said_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # nothing was to be seen
    with minitrain.record(model, None, tmp_path / "nothing"):
        pass
    assert capsys.readouterr().err == ""
    # a step by hand
    with minitrain.record(model, None, tmp_path / "passes"):
        loss_of(model, batch(0)).backward()
    assert "note: step 0: steps: 1 passes and no step" in capsys.readouterr().err
    model.eval()
    with minitrain.record(model, None, tmp_path / "steps"):
        loop(model, optimizer, 2)
    said = capsys.readouterr().err
    assert "note: step 2: steps: 2 steps and no forward pass of the training" in said


@pytest.mark.real_launch
def test_an_alarm_is_written_by_all_and_printed_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert minitrain.launch(apart, 2, tmp_path, {}) == [("", 6)] * 2
    recording = read_recording(tmp_path)
    assert all(one.end is not None for one in recording.ranks.values())
    alarms = [one.alarms for one in recording.ranks.values()]
    assert alarms[0] == alarms[1]
    (alarm,) = alarms[0]
    assert (alarm["rule"], alarm["step"], alarm["ranks"]) == ("parameters", 2, [1])
    assert alarm["tensor"] == "last.weight"
    assert capfd.readouterr().err.count(alarm["line"]) == 1


def test_an_alarm_ends_the_run_on_all_ranks_where_it_is_to(tmp_path: Path) -> None:
    options = {"on_alarm": "raise"}
    first, second = minitrain.launch(apart, 2, tmp_path, options)
    assert first == second
    line, done = first
    assert "step 2: parameters, tensor last.weight, rank 1" in line
    assert done == 2
    for rank, one in read_recording(tmp_path).ranks.items():
        assert one.end is None
        assert [row["line"] for row in one.alarms] == [line]
        assert len(steps_of(tmp_path, rank)) == 3


def test_an_alarm_at_the_last_step_is_heard(tmp_path: Path) -> None:
    """Ranks hear each other out before they end."""
    minitrain.launch(apart, 2, tmp_path, {}, 2)
    for one in read_recording(tmp_path).ranks.values():
        assert [row["step"] for row in one.alarms] == [3]


def test_what_was_heard_is_written_though_an_error_ends_the_run(tmp_path: Path) -> None:
    def fail(step: int) -> None:
        if step == 2:
            raise KeyError("a bug of the loop")

    model = nn.Linear(6, 1)
    model.spare = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([model.weight, model.bias], lr=0.1)
    with (
        pytest.raises(KeyError),
        minitrain.record(model, optimizer, tmp_path, on_alarm="raise"),
    ):
        loop(model, optimizer, 3, after=fail)
    one = read_recording(tmp_path).ranks[0]
    # that a tensor is in no optimizer is a note: it ends nothing
    assert [(row["kind"], row["step"]) for row in one.alarms] == [("note", 1)]


@pytest.mark.real_launch
def test_a_rank_that_does_not_come_is_named_by_one_that_did(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    minitrain.launch(slow_first_rank, 2, tmp_path)
    alarms = read_recording(tmp_path).ranks[1].alarms
    alarms = [row for row in alarms if row["rule"] == "ranks"]
    assert [row["ranks"] for row in alarms] == [[0]]
    assert capfd.readouterr().err.count(alarms[0]["line"]) == 1


def shorten(recorder: Any, limit_s: float) -> None:
    """Set the limit after which a rank is missed, once all are connected."""
    recorder._timeout_s = recorder._watch.timeout_s = limit_s


def slow_first_rank(folder: Path) -> None:
    """No collective keeps the ranks together here; one waits until it is missed."""
    told = folder / "rank-1.jsonl"
    with distributed() as (rank, _):
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def late(step: int) -> None:
            if step == 0:
                shorten(recorder, 4)
            if step == 2 and rank == 0:
                wait_for(lambda: re.findall('"rule": ?"ranks"', told.read_text()), 1)

        recorder = minitrain.record(model, optimizer, folder, timeout_s=GENEROUS_S)
        with recorder:
            loop(model, optimizer, 5, rank=rank, after=late)


LOOP = """
import sys
from pathlib import Path
sys.path.insert(0, "tests/support")
import torch
from recorded_loops import train_alone
torch.set_num_threads(1)
train_alone(Path(sys.argv[1]), num_steps=100_000)
"""


@pytest.mark.parametrize("moment", thorough_after(1, [1, 0, 4]))
def test_a_run_that_was_killed_leaves_its_last_whole_step(
    tmp_path: Path, moment: int
) -> None:
    folder = tmp_path / "killed"
    with subprocess.Popen([sys.executable, "-c", LOOP, folder], cwd=ROOT) as process:
        path = folder / "rank-0.jsonl"
        while not path.exists() or path.stat().st_size < 10_000 * moment:
            assert process.poll() is None
        time.sleep(0.0007 * moment)
        process.kill()
        assert process.wait() == -signal.SIGKILL
    whole = path.read_bytes().count(b"\n")
    if whole == 0:
        with pytest.raises(UserError, match="nothing recorded"):
            read_recording(folder)
        return
    one = read_recording(folder).ranks[0]
    assert one.end is None
    assert len(one.steps) == whole - 1
    steps = [row["step"] for row in one.steps.values()]
    train_alone(tmp_path / "whole", num_steps=max(steps, default=-1) + 1)
    assert read_recording(tmp_path / "whole").ranks[0].steps == one.steps
