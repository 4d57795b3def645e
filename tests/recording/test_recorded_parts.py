"""Ranks that hold a part of each parameter: what puts them together hangs no run."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded_loops import batch, loss_of, plain
from thorough import thorough_after

import minitrain
from minitrain.comm.groups import distributed
from minitrain.core.errors import RankError
from minitrain.recording.format import read_recording

STEPS, AT, TIMEOUT_S = 8, 4, 5.0
# what a guard may do on one rank, no step or one without gradients, and how often is
# recorded: the rank is missed where it acts, or at the next recorded step
GUARDS = [("skips", 1, AT), ("skips", 5, 5), ("has no gradients", 1, AT)]


def guarded(
    folder: Path | None, guard: str = "", options: dict[str, Any] | None = None
) -> list[list[float]]:
    """Rank 1 does as its guard does at one step; what the run ends with."""
    from torch.distributed.fsdp import fully_shard

    with distributed(timeout_s=60) as (rank, _):
        model = plain()
        # each in parts of its own, so that there is much to meet
        for layer in (model[0], model[2], model):
            fully_shard(layer)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        recorder: Any = nullcontext()
        if folder is not None:
            options = {"every": 1, "timeout_s": TIMEOUT_S} | (options or {})
            recorder = minitrain.record(model, optimizer, folder, **options)
        with recorder:
            for step in range(STEPS):
                loss_of(model, batch(step, rank)).backward()
                here = (rank, step) == (1, AT)
                if here and guard:
                    optimizer.zero_grad()
                if here and guard == "stops":
                    recorder.stop()
                if not (here and guard == "skips"):
                    optimizer.step()
                optimizer.zero_grad()
        return [p.full_tensor().flatten().tolist() for p in model.parameters()]


@pytest.mark.real_launch
@pytest.mark.parametrize(("guard", "every", "missed"), thorough_after(1, GUARDS))
def test_a_rank_with_a_guard_of_its_own_ends_the_recording_and_not_the_run(
    tmp_path: Path,
    guard: str,
    every: int,
    missed: int,
    capfd: pytest.CaptureFixture[str],
) -> None:
    plain = minitrain.launch(guarded, 2, None, guard)
    folder = tmp_path / "recorded"
    assert minitrain.launch(guarded, 2, folder, guard, {"every": every}) == plain
    first, second = read_recording(folder).ranks.values()
    whole = [(0, step) for step in range(missed) if step < 3 or every == 1]
    assert [*first.steps] == [*second.steps] == whole
    assert first.end is second.end is None
    told = first.alarms[0]
    assert told == second.alarms[0]
    assert told["rule"] == ("ranks" if guard == "skips" else "steps")
    assert (told["step"], told["ranks"]) == (missed, [1])
    assert told["line"].endswith("so the recording ends here")
    assert capfd.readouterr().err.count(told["line"]) == 1


def test_a_rank_with_a_guard_of_its_own_ends_the_run_where_alarms_do(
    tmp_path: Path,
) -> None:
    line = r"EvidenceError: .* rank 1: did not come to step 4, with .* within"
    with pytest.raises(RankError, match=line):
        minitrain.launch(guarded, 2, tmp_path, "skips", {"on_alarm": "raise"})


def test_a_rank_that_stops_its_recorder_is_not_waited_for(tmp_path: Path) -> None:
    minitrain.launch(guarded, 2, tmp_path, "stops")
    first, second = read_recording(tmp_path).ranks.values()
    assert [*first.steps] == [*second.steps] == [(0, step) for step in range(AT)]
    assert first.end is None
    assert second.end is not None
    assert "rank 1: at the end, but elsewhere step 4" in first.alarms[0]["line"]
