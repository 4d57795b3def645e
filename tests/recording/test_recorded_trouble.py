"""Alarms while the run goes on, how a recording ends, and trouble of the recorder that
must not be trouble of the run.
"""

import json
import os
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from recorded_loops import (
    Net,
    batch,
    loop,
    loss_of,
    record_loop,
    state_bytes,
    steps_of,
)
from torch import nn
from torch.optim import SGD

import minitrain
from minitrain.comm.groups import distributed, wrap_for_ddp
from minitrain.core.errors import EvidenceError, UserError
from minitrain.recording import recorder as recorders
from minitrain.recording.format import Writer, read_recording

# what is too long to wait for
LONG_S = 600


class OnDiskThatFills(Writer):
    def append(self, line: bytes) -> None:
        if json.loads(line).get("step") == 1:
            full = os.open("/dev/full", os.O_WRONLY)
            os.dup2(full, self._file.fileno())
            os.close(full)
        super().append(line)


def on_full_disk(folder: Path | None) -> list[bytes]:
    with distributed() as (rank, _):
        torch.manual_seed(rank)
        model = wrap_for_ddp(Net())
        optimizer = SGD(model.parameters(), lr=0.1)
        if rank == 1:
            recorders.Writer = OnDiskThatFills  # type: ignore[misc]
        recorder: Any = nullcontext()
        if folder is not None:
            recorder = minitrain.record(model, optimizer, folder, every=1, timeout_s=10)
        with recorder:
            loop(model, optimizer, 5, rank=rank)
        return state_bytes(model, optimizer)


@pytest.mark.real_launch
def test_a_full_disk_ends_the_recording_and_not_the_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plain = minitrain.launch(on_full_disk, 2, None)
    folder = tmp_path / "recorded"
    assert minitrain.launch(on_full_disk, 2, folder) == plain
    first, second = read_recording(folder).ranks.values()
    # the others go on, and hear of all its steps
    assert (len(first.steps), first.alarms) == (5, [])
    assert first.end is not None
    assert (list(second.steps), second.end) == ([(0, 0)], None)
    lines = capfd.readouterr().err.splitlines()
    said = [line for line in lines if "no more" in line]
    assert len(said) == 1
    assert said[0].startswith("minitrain: rank 1 records no more: ")
    assert "no space left on the disk" in said[0]


def sharded_and_recorded_by_one(folder: Path) -> None:
    from torch.distributed.fsdp import fully_shard

    with distributed(timeout_s=60) as (rank, _):
        model = fully_shard(nn.Sequential(nn.Linear(6, 1), nn.Flatten(0)))
        optimizer = SGD(model.parameters(), lr=0.1)
        if rank == 1:
            loop(model, optimizer, 2, rank=rank)
            return
        with minitrain.record(model, optimizer, folder, timeout_s=2):
            loop(model, optimizer, 2, rank=rank)


def test_parts_that_one_rank_alone_would_record_are_refused(tmp_path: Path) -> None:
    """What hashes them would meet the collectives of the others' run, or wait."""
    with pytest.raises(UserError, match=r"within 2 s: every rank has to"):
        minitrain.launch(sharded_and_recorded_by_one, 2, tmp_path)
    # so the folder can be used
    assert not list(tmp_path.iterdir())


def test_what_was_compiled_with_the_hooks_goes_on_alone(tmp_path: Path) -> None:
    model = Net()
    optimizer = SGD(model.parameters(), lr=0.1)
    recorder = minitrain.record(model, optimizer, tmp_path, every=1)
    recorder.start()
    loop(model, optimizer, 1)
    hooks = [*model._forward_pre_hooks.values()]
    recorder.stop()
    written = (tmp_path / "rank-0.jsonl").read_bytes()
    for hook in hooks:
        hook(model, (batch(1),), {})
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
    assert not model._forward_hooks
    loss_of(model, batch(1)).backward()
    optimizer.step()
    assert recorder._passes.forwards == 1
    assert (tmp_path / "rank-0.jsonl").read_bytes() == written


def stops_in_finally(folder: Path) -> bool:
    """Return whether the recording of a rank has an end, and no alarm."""
    with distributed() as (rank, _):
        torch.manual_seed(rank)
        model = wrap_for_ddp(Net())
        optimizer = SGD(model.parameters(), lr=0.1)
        # the other rank waits for the row that the first does not write
        timeout_s = 1.0 if rank else 3 * LONG_S
        recorder = minitrain.record(model, optimizer, folder, timeout_s=timeout_s)
        recorder.start()
        with suppress(KeyError):
            try:
                loop(model, optimizer, 2, rank=rank)
                if rank == 0:
                    raise KeyError("a bug of the loop")
                # the other one is to come here without this one's end
                dist.barrier()
            finally:
                recorder.stop()
        if rank == 0:
            dist.barrier()
        return read_recording(folder).ranks[rank].end is not None


def test_stop_in_finally_does_not_wait_after_an_error(tmp_path: Path) -> None:
    assert minitrain.launch(stops_in_finally, 2, tmp_path) == [False, True]
    assert read_recording(tmp_path).ranks[0].alarms == []


def test_an_error_that_was_handled_ends_no_recording(tmp_path: Path) -> None:
    """As of a run that is tried again with smaller batches."""
    try:
        raise MemoryError
    except MemoryError:
        record_loop(tmp_path, Net(), num_steps=2)
    assert read_recording(tmp_path).ranks[0].end is not None


def apart(folder: Path, options: dict[str, Any], at: int = 1) -> tuple[str, int]:
    """Rank 1 changes a weight of its own after a step: the error, and when it came."""
    done = []
    with distributed() as (rank, _):
        torch.manual_seed(rank)
        model = wrap_for_ddp(Net())
        optimizer = SGD(model.parameters(), lr=0.1)

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
    # nothing was to be seen
    with minitrain.record(model, None, tmp_path / "nothing"):
        pass
    assert capsys.readouterr().err == ""
    # a step by hand
    with minitrain.record(model, None, tmp_path / "passes"):
        loss_of(model, batch(0)).backward()
    assert "note: step 0: steps: 1 passes and no step" in capsys.readouterr().err
    model.eval()
    record_loop(tmp_path / "steps", model, num_steps=2)
    said = capsys.readouterr().err
    assert "note: step 2: steps: 2 steps and 0 forward passes of the training" in said


@pytest.mark.real_launch
def test_an_alarm_is_written_by_all_and_printed_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Though it comes at the last step that is recorded."""
    assert minitrain.launch(apart, 2, tmp_path, {}, 2) == [("", 6)] * 2
    recording = read_recording(tmp_path)
    assert all(one.end is not None for one in recording.ranks.values())
    alarms = [one.alarms for one in recording.ranks.values()]
    assert alarms[0] == alarms[1]
    (alarm,) = alarms[0]
    assert (alarm["rule"], alarm["step"], alarm["ranks"]) == ("parameters", 3, [1])
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


def test_what_was_heard_is_written_though_an_error_ends_the_run(tmp_path: Path) -> None:
    def fail(step: int) -> None:
        if step == 2:
            raise KeyError("a bug of the loop")

    model = nn.Linear(6, 1)
    model.spare = nn.Parameter(torch.ones(1))
    optimizer = SGD([model.weight, model.bias], lr=0.1)
    with (
        pytest.raises(KeyError),
        minitrain.record(model, optimizer, tmp_path, on_alarm="raise"),
    ):
        loop(model, optimizer, 3, after=fail)
    one = read_recording(tmp_path).ranks[0]
    assert ([*one.steps], one.end) == ([(0, 0), (0, 1), (0, 2)], None)
    assert not model._forward_pre_hooks
    assert not model._forward_hooks
    # that a tensor is in no optimizer is a note: it ends nothing
    assert [(row["kind"], row["step"]) for row in one.alarms] == [("note", 1)]
