"""Where the time of a step goes in loops of others: what the recorder's clock books."""

import json
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import count
from math import nan
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.distributed as dist
from figures import figure
from recorded_loops import steps
from thorough import thorough_after
from torch import Tensor, nn
from torch.distributed import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

import minitrain
from minitrain.analysis.account import rows_where
from minitrain.comm.groups import distributed
from minitrain.comm.torch_private import ddp_times_ns
from minitrain.core.errors import UserError
from minitrain.harness.launcher import launch
from minitrain.recording.clock import COLUMNS, RecordingClock, path_of_times
from minitrain.recording.shown import show
from minitrain.recording.times import Times, compare_times, read_times

# half of those that are timed decide, and eight are needed to name a slow rank
STEPS = 20
# milliseconds, each part another; long beside what a busy machine adds
DELAYS = {
    "data_ms": 60,
    "forward_ms": 70,
    "backward_ms": 80,
    "comm_exposed_ms": 90,
    "other_ms": 75,
    "optimizer_ms": 100,
}
# by the kind of loop, what differs from one pass, clipped and not compiled
KINDS: dict[str, dict[str, Any]] = {
    "clip": {},
    "accumulation": {"passes": 3},
    "plain": {"clips": False},
    "compile": {"compiles": True},
}
CASES = [(0, "clip"), (1, "accumulation")]
CASES += [(r, kind) for kind in KINDS for r in (0, 1) if (r, kind) not in CASES]
# so many recordings with a late rank, and as many without
RUNS = 20


class Late(nn.Module):
    def __init__(self, delay: Any) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 64), nn.Linear(64, 8)
        self._delay = delay

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        self._delay("forward_ms")
        return {"out": self.second(self.first(x).relu())}


class LateStep(torch.optim.SGD):
    def __init__(self, parameters: Any, delay: Any) -> None:
        super().__init__(parameters, lr=0.01)
        self._delay = delay

    def step(self, closure: Any = None) -> None:
        self._delay("optimizer_ms")
        super().step()


@dataclass
class Loop:
    """A loop whose rank ``late`` is delayed in every part; ``passes`` make a step. It
    returns, for each step that counts, each delay and the length of the step.
    """

    folder: Path
    late: int
    passes: int = 1
    clips: bool = True
    compiles: bool = False

    def __call__(self) -> dict[str, list[float]]:
        took: dict[str, list[float]] = {part: [] for part in DELAYS}
        ends: list[float] = []

        # in a compiled model, too
        @torch.compiler.disable
        def delay(part: str) -> None:
            if dist.get_rank() == self.late:
                start = time.perf_counter()
                time.sleep(DELAYS[part] / 1e3)
                took[part].append(1e3 * (time.perf_counter() - start))

        torch.set_num_threads(1)
        with distributed():
            model = Late(delay)
            first = next(model.parameters())
            first.register_hook(lambda _: delay("backward_ms"))
            if self.compiles:
                model = torch.compile(model, backend="aot_eager")
            wrapped = DistributedDataParallel(model)

            def exchange(group: Any, bucket: GradBucket) -> Future[Tensor]:
                work = dist.all_reduce(bucket.buffer().div_(2), async_op=True)
                done: Future[Tensor] = Future()

                def deliver() -> None:
                    work.wait()
                    delay("comm_exposed_ms")
                    done.set_result(bucket.buffer())

                # a callback of the work would delay this thread, and with it the last
                # gradient, if the work is done already
                Thread(target=deliver).start()
                return done

            wrapped.register_comm_hook(None, exchange)
            optimizer = LateStep(wrapped.parameters(), delay)
            with minitrain.record(wrapped, optimizer, self.folder, every=1000):
                for _ in range(STEPS):
                    self.step(wrapped, optimizer, delay)
                    ends.append(time.perf_counter())
        of_step = {"step_ms": 1e3 * np.diff(ends, prepend=nan)}
        for part, values in took.items():
            if values:
                of_step[part] = np.array(values).reshape(STEPS, -1).sum(1)
        # the first four do not count
        return {name: values[4:].tolist() for name, values in of_step.items()}

    def step(self, model: Any, optimizer: Any, delay: Any) -> None:
        for number in range(self.passes):
            delay("data_ms")
            x, is_last = torch.randn(4, 8), number == self.passes - 1
            with nullcontext() if is_last else model.no_sync():
                model(x)["out"].square().mean().backward()
        if self.clips:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        delay("other_ms")
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.slow
@pytest.mark.parametrize(("late", "kind"), thorough_after(2, CASES))
def test_planted_delays_are_booked_to_their_part_and_rank(
    late: int, kind: str, tmp_path: Path
) -> None:
    loop = Loop(tmp_path / "run", late, **KINDS[kind])
    found = launch(loop, 2, timeout_s=240)
    times = times_of(tmp_path / "run")
    assert times.num_timed == STEPS - 4
    # the shorter half of the steps: on a busy machine, any part of a step may be longer
    longest_ms = np.max([one["step_ms"] for one in found], axis=0)
    quiet = np.argsort(longest_ms)[: (STEPS - 4) // 2]
    rows = rows_where(times.rows, np.isin(times.rows["step"], quiet + 4))
    times = replace(times, rows=rows)
    assert times.num_timed == len(quiet) == 8
    assert [lag.rank for lag in times.stragglers.slow] == [late]
    means = [{n: np.array(ms)[quiet].mean() for n, ms in one.items()} for one in found]
    steps_ms = [one.pop("step_ms") for one in means]
    took = means[late]
    assert took.keys() == DELAYS.keys()
    mine, other = times.parts[str(late)], times.parts[str(1 - late)]
    for part, ms in took.items():
        # without what both have of it
        booked = figure(part, mine[part] - other[part], ms)
        assert booked == pytest.approx(ms, rel=0.1, abs=25), part
    waited = figure("wait_ms of the other", other["wait_ms"], sum(took.values()))
    assert waited == pytest.approx(sum(took.values()), rel=0.15)
    assert mine["wait_ms"] < 0.1 * sum(took.values())
    for rank, ms in enumerate(steps_ms):
        parts_ms = times.parts[str(rank)]["step_ms"]
        assert figure(f"parts of rank {rank}", parts_ms, ms) == pytest.approx(
            ms, rel=0.05
        )
    facts = show(tmp_path / "run")
    assert {lag["rank"] for lag in facts["stragglers"]["slow"]} <= {late}
    assert facts["samples_per_s"] == pytest.approx(
        2 * loop.passes * 4 / (max(np.mean(one["step_ms"]) for one in found) / 1e3),
        rel=0.02,
    )


def times_of(folder: Path) -> Times:
    times = read_times(folder)
    assert times is not None
    return times


def layers(count: int, size: int) -> DistributedDataParallel:
    return DistributedDataParallel(
        nn.Sequential(*(nn.Linear(size, size) for _ in range(count)))
    )


def logged_by_ddp(folder: Path) -> tuple[float, float, float]:
    """A recorded loop; mean milliseconds of forward, backward, and its computation."""
    torch.set_num_threads(1)
    logged = []
    with distributed():
        model = layers(6, 1024)
        for _ in steps(folder, model, num_steps=STEPS, every=1000):
            model(torch.randn(64, 1024)).mean().backward()
            logged.append(ddp_times_ns(model))
    mean_ms = torch.tensor(logged[4:]).double().mean(0) / 1e6
    forward, compute, comm, overlap = mean_ms.tolist()
    return forward, compute + comm - overlap, compute


@pytest.mark.slow
@pytest.mark.thorough
def test_clock_agrees_with_the_log_of_ddp(tmp_path: Path) -> None:
    found = launch(logged_by_ddp, 2, tmp_path / "run", timeout_s=240)
    times = times_of(tmp_path / "run")
    assert times.num_timed == STEPS - 4
    for rank, (forward, backward, compute) in enumerate(found):
        parts = times.parts[str(rank)]
        ours = parts["comm_exposed_ms"] + parts["wait_ms"] + parts["backward_ms"]
        for name, booked, ms in (
            ("forward", parts["forward_ms"], forward),
            ("compute", parts["backward_ms"], compute),
            ("backward", ours, backward),
        ):
            assert figure(f"{name} of rank {rank}", booked, ms) == pytest.approx(
                ms, rel=0.15
            ), name


def recorded_runs(folder: Path) -> None:
    """In the first half, one rank is 12 ms late in the backward pass."""
    torch.set_num_threads(1)
    with distributed() as (rank, _):
        for run in range(2 * RUNS):
            model = layers(4, 512)
            if run < RUNS and rank == run % 2:
                first = next(model.parameters())
                first.register_hook(lambda _: time.sleep(0.012))
            for _ in steps(folder / str(run), model, num_steps=40, every=1000):
                model(torch.randn(64, 512)).square().mean().backward()


@pytest.mark.slow
@pytest.mark.thorough
def test_late_rank_is_named_in_each_run_and_none_without(tmp_path: Path) -> None:
    launch(recorded_runs, 2, tmp_path, timeout_s=280)
    found = []
    for run in range(2 * RUNS):
        facts = show(tmp_path / str(run))
        assert facts["stragglers"]["undecided"] is None
        slow = [lag["rank"] for lag in facts["stragglers"]["slow"]]
        found.append((slow, facts["late_part"]))
    late = [one == ([run % 2], "backward_ms") for run, one in enumerate(found[:RUNS])]
    clean = [one == ([], None) for one in found[RUNS:]]
    assert figure("runs whose late rank is named", sum(late), RUNS) == RUNS, found
    # on a busy machine, a rank may be late by itself
    assert figure("clean runs without a name", sum(clean), RUNS) >= RUNS - 2, found


def with_two_optimizers(folder: Path) -> None:
    """Rank 1 has a slow loader, and one long forward pass; rank 0 evaluates once."""
    torch.set_num_threads(1)
    with distributed() as (rank, _):
        model = layers(2, 8)
        optimizers = [torch.optim.SGD(of.parameters(), lr=0.01) for of in model.module]
        passes = count()
        model.module[1].register_forward_pre_hook(
            lambda *_: time.sleep(0.6 if (next(passes), rank) == (12, 1) else 0)
        )
        # the second of them steps first
        with minitrain.record(model, optimizers[::-1], folder, every=1000):
            for number in range(STEPS):
                time.sleep(0.03 * rank)
                model(torch.randn(4, 8)).square().mean().backward()
                for one in optimizers:
                    one.step()
                model.zero_grad()
                if number == 7 and rank == 0:
                    time.sleep(0.01)
                    with torch.no_grad():
                        model.module.eval()(torch.randn(4, 8))
                        time.sleep(1.0)
                    model.module.train()


def test_steps_of_two_optimizers_are_one_step_of_the_loop(tmp_path: Path) -> None:
    launch(with_two_optimizers, 2, tmp_path, timeout_s=240)
    facts, times = show(tmp_path), times_of(tmp_path)
    assert times.one_clock
    # not the first four, nor the one of the evaluation, on which all ranks wait
    assert (times.num_steps, facts["steps_timed"]) == (STEPS, STEPS - 5)
    assert (facts["num_steps"], facts["num_recorded"]) == (STEPS, 3)
    slow = [lag["rank"] for lag in facts["stragglers"]["slow"]]
    assert (slow, facts["late_part"]) == ([1], "data_ms")
    parts = times.parts["1"]
    assert 30 < parts["data_ms"] < parts["step_ms"] < 400
    # the long pass counts for the mean, not for where the rank is late
    assert parts["forward_ms"] > 0.6e3 / STEPS


def sharded(folder: Path) -> None:
    """Rank 1 has a slow loader."""
    from torch.distributed.fsdp import fully_shard

    with distributed() as (rank, _):
        model = fully_shard(nn.Linear(8, 8))
        for _ in steps(folder, model, num_steps=STEPS, every=1000):
            time.sleep(0.03 * rank)
            model(torch.randn(4, 8)).square().mean().backward()


def test_ranks_that_wait_in_their_forward_pass_are_not_judged(tmp_path: Path) -> None:
    launch(sharded, 2, tmp_path, timeout_s=240)
    facts = show(tmp_path)
    said = "no step separates a rank's own work from communication"
    assert facts["steps_timed"] == STEPS - 4
    assert (facts["stragglers"]["undecided"], facts["late_part"]) == (said, None)


def trained(
    folder: Path, num_steps: int = 12, every: int = 5, sleeps_s: float = 0.0
) -> None:
    """One process, which evaluates after step 7 and sleeps before each pass."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with minitrain.record(model, optimizer, folder, every=every) as recorder:
        for step in range(num_steps):
            time.sleep(sleeps_s)
            loss = model(torch.ones(3, 4)).sum()
            loss.backward()
            recorder.loss(loss)
            optimizer.step()
            optimizer.zero_grad()
            if step == 7:
                model.eval()
                model(torch.ones(1, 4))
                model.train()


def test_steps_that_were_recorded_or_follow_a_pause_are_not_timed(
    tmp_path: Path,
) -> None:
    trained(tmp_path)
    table = pd.read_csv(path_of_times(tmp_path, 0), comment="#")
    assert [*table.columns] == [*COLUMNS]
    assert [*table["step"]] == [*range(12)]
    assert [*table.query("recorded == 1")["step"]] == [0, 1, 2, 5, 10]
    assert [*table.query("evals > 0")["step"]] == [8]
    assert [*table["samples"].unique()] == [3]
    times = times_of(tmp_path)
    # 3, 6 and 11 follow a recorded step
    assert [*times.steps["step"]] == [4, 7, 9]
    # parts are positive and add up
    parts = dict(times.parts["0"])
    assert "wait_ms" not in parts
    step = parts.pop("step_ms")
    assert min(ms for ms in parts.values() if ms is not None) >= 0
    assert sum(ms or 0 for ms in parts.values()) == pytest.approx(step)
    # at a glance
    facts = show(tmp_path)
    assert json.loads(json.dumps(facts)) == facts
    expected = {
        "folder": str(tmp_path),
        "world_size": 1,
        "missing_ranks": [],
        "ended": True,
        "num_steps": 12,
        "num_recorded": 5,
        "every": 5,
        "device": "cpu",
        "alarms": [],
        "late_part": None,
    }
    assert {key: facts[key] for key in expected} == expected
    assert [of["step"] for of in facts["losses"]] == [0, 1, 2, 5, 10]
    assert facts["stragglers"]["undecided"]
    # of a last line that was cut nothing is read
    file = path_of_times(tmp_path, 0)
    file.write_text(file.read_text().removesuffix("# end\n")[:-5])
    assert times_of(tmp_path).num_steps == 11


def test_summary_is_what_show_returns(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    recorder = minitrain.record(model, None, tmp_path)
    with recorder:
        model(torch.ones(3, 4)).sum().backward()
        assert recorder.summary()["ended"] is False
    assert recorder.summary() == show(tmp_path)


def test_recording_without_times_is_shown_and_damage_is_one_line(
    tmp_path: Path,
) -> None:
    """As an earlier minitrain wrote it, or where every step is recorded."""
    trained(tmp_path, every=1)
    assert show(tmp_path)["steps_timed"] == 0
    file = path_of_times(tmp_path, 0)
    for row in ("1,2", "4,0,,1,1,1,1,1,,3,0,0", "4,0,1,1,inf,1,1,1,,3,0,0"):
        file.write_text(f"# host\nnames\n{row}\n")
        with pytest.raises(UserError, match=r"times-0.csv: damaged"):
            show(tmp_path)
    file.unlink()
    assert show(tmp_path)["steps_timed"] is None


class Failed:
    def query(self) -> bool:
        raise RuntimeError("CUDA error: device-side assert triggered")

    synchronize = query


def test_end_is_written_after_an_error_on_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = RecordingClock(tmp_path, 1)
    clock.step_ended(0, 0, recorded=False)
    clock._on_gpu, clock._now = True, Failed
    clock.mark("data", "forward")
    clock._unread.append(([1, 0, False], clock._timed))
    clock.close()
    assert path_of_times(tmp_path, 1).read_text().endswith("\n# end\n")


def test_clock_follows_the_model_to_its_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []
    monkeypatch.setattr(RecordingClock, "use_events", lambda *_: used.append(1))
    model = nn.Linear(4, 2)
    with minitrain.record(model, None, tmp_path):
        assert used == []
        monkeypatch.setattr(nn.Parameter, "is_cuda", True, raising=False)
        clock = model.register_forward_pre_hook(
            lambda *_: monkeypatch.delattr(nn.Parameter, "is_cuda"), prepend=False
        )
        model(torch.ones(3, 4)).sum().backward()
        clock.remove()
        model(torch.ones(3, 4)).sum().backward()
    assert used == [1]


def test_part_that_takes_longer_is_named(tmp_path: Path) -> None:
    for name, sleeps_s in (("a", 0.0), ("b", 0.05)):
        trained(tmp_path / name, num_steps=20, every=100, sleeps_s=sleeps_s)
    a, b = (times_of(tmp_path / name) for name in "ab")
    slower, faster, same = compare_times(a, b), compare_times(b, a), compare_times(b, b)
    assert slower is not None
    assert slower.differ
    assert next(iter(slower.parts)) == "data_ms"
    assert slower.parts["data_ms"] == pytest.approx(50, rel=0.3)
    assert slower.b_ms - slower.a_ms == pytest.approx(50, rel=0.3)
    assert faster is not None
    assert faster.parts["data_ms"] == -slower.parts["data_ms"]
    assert same is not None
    assert (same.differ, same.parts, same.one_host) == (False, {}, True)
    assert compare_times(a, None) is None
