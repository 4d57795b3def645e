"""Training over gloo: right where nothing is injected, and what a run records.

Real data-parallel bugs are injected in tests/studies/test_bugs.py.
"""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from project import ROOT
from tiny import NUM_STEPS, tiny_config, tiny_params, with_factory
from torch import Tensor
from waiting import GENEROUS_S

from minitrain.analysis.account import DDP_SAYS
from minitrain.analysis.rungs import not_run
from minitrain.bench.ledger import CollectiveLedger
from minitrain.comm.groups import distributed
from minitrain.core.files import read_json
from minitrain.core.params import Params
from minitrain.harness.launcher import launch
from minitrain.proof.evidence import Evidence, evidence_of
from minitrain.proof.forward import DRAWS, NORMALIZES, forward_of
from minitrain.proof.ladder import ladder, own_rungs
from minitrain.proof.replay import replay
from minitrain.proof.runs import run_one_process
from minitrain.sync.ddp_buckets import StockDDP
from minitrain.sync.guarantees import DEFAULTS
from minitrain.sync.strategy import Traffic
from minitrain.train import run as of_rank
from minitrain.train.config import RunConfig
from minitrain.train.observer import StepObserver, watches_parts
from minitrain.train.run import Job, run_rank
from minitrain.train.step_record import TrainResult
from minitrain.train.worker import Worker

pytestmark = pytest.mark.slow


ONE_PROCESS = ("one_process_gradients", "one_process_early", "one_process")
REPLAY = ("replay_gradients", "replay_parameters", "replay_buffers", "replay")
ASKED = ("trained", "ranks", "data", *REPLAY, *ONE_PROCESS)
CLOSE = {"equal", "within tolerance"}


def be_a_rank(config: RunConfig) -> TrainResult:
    torch.set_num_threads(1)
    with distributed():
        return run_rank(config, observer=watches_parts)


def train_tiny(config: RunConfig, world_size: int) -> Evidence:
    finished = launch(be_a_rank, world_size, config, timeout_s=GENEROUS_S)
    return evidence_of(finished, [one.state for one in finished])


def judged(
    params: Params, shards: Path, world_size: int
) -> tuple[Evidence, dict[str, str]]:
    """A run, and the verdict of each rung of the pipeline on it."""
    config = tiny_config(params, shards, world_size)
    run = train_tiny(config, world_size)
    expected = replay(config, run.rows, world_size)
    one = run_one_process(tiny_config(params, shards, 1))
    no_witness = {"witness_data": asdict(not_run("not asked for"))}
    own = own_rungs(config, run, expected, no_witness)
    # as stable as can be: no gap is excused
    found = ladder(own, config, run, one, lambda: one, 1e-5)
    return run, {name: found[name].verdict for name in ASKED}


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_clean_run_passes_every_rung(
    shards: Path, world_size: int, optimizer: str
) -> None:
    run, found = judged(tiny_params(optimizer=optimizer), shards, world_size)
    # calibration leaves no trace in the bits
    assert "bracketed" in {row["kind"] for row in run.results[0].timings}
    # the names of the unwrapped module
    assert "token_embedding.weight" in run.states[0]
    if world_size == 4:
        # 50 samples, 12 a batch: the fifth batch of an epoch holds 2, so two ranks have
        # none; 6 steps reach into the second epoch
        assert [row["tokens"] for row in run.results[3].timings][4] == 0
    assert {found.pop(name) for name in ONE_PROCESS} <= CLOSE
    assert found.pop("ranks") == ("not run" if world_size == 1 else "equal")
    assert found.pop("trained") == "passed"
    assert found.pop("replay_buffers") == "not run"
    assert set(found.values()) == {"equal"}


OTHER_MODELS = {
    "batch_norm": NORMALIZES,
    "counting": None,
    "dropout": DRAWS,
    "with_mask": None,
    "tied": None,
    "double": None,
    # one process has no recorded buckets, which DDP fills by type
    "two_types": None,
    # the ring cuts its gradient as it lies in memory
    "transposed": None,
}


@pytest.mark.parametrize("factory", OTHER_MODELS)
def test_other_models_pass_every_rung_that_can_be_asked(
    shards: Path, factory: str
) -> None:
    params = with_factory(tiny_params(), f"other_models:{factory}")
    run, found = judged(params, shards, 3)
    why = forward_of(run.rows, tiny_config(params, shards, 1)).why
    assert why == OTHER_MODELS[factory]
    gaps = {found.pop(name) for name in ONE_PROCESS}
    assert why is not None or gaps <= CLOSE
    assert found.pop("trained") == "passed"
    has_buffers = factory in ("batch_norm", "counting", "with_mask")
    assert found.pop("replay_buffers") == ("equal" if has_buffers else "not run")
    assert set(found.values()) == {"equal"}


def write_slowly(job: Job) -> None:
    write = of_rank.write_run

    def write_run(*given: Any) -> None:
        if dist.get_rank() == 0:
            time.sleep(2 * job.params.launch.timeout_s)
        write(*given)

    of_rank.write_run = write_run
    of_rank.train_rank(job, "launch")


def test_results_may_take_longer_to_write_than_a_step(
    shards: Path, tmp_path: Path
) -> None:
    """Before, the ranks that waited reported a finished run as hanging."""
    tiny = with_factory(tiny_params(threads_per_process=1), "other_models:two_types")
    short = {"launch": tiny.launch.model_copy(update={"timeout_s": 4})}
    params, script = tiny.model_copy(update=short), ROOT / "stages/train.py"
    job = Job(params, "gloo", 2, shards / "world-2", tmp_path, script)
    launch(write_slowly, 2, job, timeout_s=GENEROUS_S)
    found = read_json(tmp_path / "provenance.json")
    numbers = dict.fromkeys((4, 8), 0)
    for p in tiny_config(params, shards, 2).start_model(0).parameters():
        numbers[p.itemsize] += p.numel()
    assert found["model_params"] == sum(numbers.values())
    assert found["gradient_bytes"] == sum(size * n for size, n in numbers.items())


def test_each_rank_has_its_own_seed_and_all_start_from_rank_0(shards: Path) -> None:
    config = tiny_config(tiny_params(), shards, 2)

    def start_and_wrapped() -> tuple[float, float]:
        with distributed() as (rank, _):
            model = config.start_model(rank)
            before = next(model.parameters()).sum().item()
            StockDDP(model, DEFAULTS, timed=False)
            return before, next(model.parameters()).sum().item()

    (first, kept), (second, replaced) = launch(start_and_wrapped, 2)
    assert first != second
    assert first == kept == replaced


def test_ddp_logs_every_step_and_its_times_lie_within_ours(shards: Path) -> None:
    run = train_tiny(tiny_config(tiny_params(), shards, 2), 2)
    # torch reads a clock that may be adjusted meanwhile
    slack = 0.1
    for row in [row for result in run.results for row in result.timings]:
        ddp = {name: row[f"ddp_{name}"] for name in DDP_SAYS}
        assert min(ddp.values()) > 0
        assert max(ddp["backward_compute_ms"], ddp["comm_ms"]) <= ddp["backward_ms"]
        assert ddp["forward_ms"] <= row["forward_ms"] + slack
        # there is a barrier between
        if row["kind"] != "bracketed":
            both = ddp["forward_ms"] + ddp["backward_ms"]
            assert both <= row["forward_ms"] + row["backward_ms"] + slack
            assert row["comm_total_ms"] <= ddp["comm_ms"] + slack


class WatchesCalibration(StepObserver):
    """Notes of each calibration whether it sends anything, or moves buffers or numbers
    of a generator.
    """

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker, watches=True)
        self.found: list[tuple[Traffic, bool]] = []

    def _backward_alone_ms(self) -> float:
        before = self._state()
        with CollectiveLedger() as ledger:
            took = super()._backward_alone_ms()
        moved = not all(map(torch.equal, before, self._state()))
        self.found.append((ledger.traffic, moved))
        return took

    def _state(self) -> list[Tensor]:
        buffers = [buffer.clone() for buffer in self.worker.model.buffers()]
        return [torch.get_rng_state(), *buffers]


def calibrations(config: RunConfig) -> list[tuple[Traffic, bool]]:
    with distributed():
        worker = Worker(config, observer=WatchesCalibration)
        worker.train(range(NUM_STEPS))
        worker.close()
        return worker.observer.found


@pytest.mark.parametrize(
    ("name", "factory"), [("ddp", "dropout"), ("flat", "batch_norm")]
)
def test_calibration_leaves_nothing_behind(
    shards: Path, name: str, factory: str
) -> None:
    """Else the account would subtract communication from communication."""
    params = with_factory(tiny_params(sync=name), f"other_models:{factory}")
    config = tiny_config(params, shards, 2)
    ranks = launch(calibrations, 2, config, timeout_s=GENEROUS_S)
    # one bracketed step of six
    assert ranks == [[({}, False)]] * 2
