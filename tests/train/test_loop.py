"""Training over gloo: right where nothing is injected, caught where a fault is.

Each fault is a real data-parallel bug, injected without touching the code under test.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from bugs import (
    buffers_not_synchronized,
    duplicate_samples,
    mean_of_means,
    sum_for_mean,
    wrapper_bypassed,
)
from tiny import (
    NUM_STEPS,
    one_process_tiny,
    replay_tiny,
    tiny_config,
    tiny_params,
    tiny_shards,
    train_tiny,
    with_factory,
)
from torch import Tensor
from waiting import GENEROUS_S

from minitrain.analysis.account import DDP_SAYS, ddp_says
from minitrain.bench.ledger import CollectiveLedger
from minitrain.comm.groups import distributed
from minitrain.comm.torch_private import LOGGED
from minitrain.core.errors import UserError
from minitrain.core.params import Params
from minitrain.data.batches import MicroBatch
from minitrain.data.text import VOCAB_SIZE
from minitrain.harness.launcher import launch
from minitrain.model.factory import build_model
from minitrain.proof.bits import Rung, bits_rung, hashes_rung, not_run
from minitrain.proof.evidence import Evidence
from minitrain.proof.forward import DRAWS, NORMALIZES, forward_of
from minitrain.proof.ladder import ladder as all_rungs
from minitrain.proof.ladder import own_rungs
from minitrain.proof.runs import run_twin
from minitrain.proof.tolerances import close_rung, one_process_rungs, state_limits
from minitrain.sync.guarantees import DEFAULTS
from minitrain.sync.stock import StockDDP
from minitrain.sync.strategy import Traffic
from minitrain.train.clock import Row
from minitrain.train.loop import train
from minitrain.train.observer import StepObserver
from minitrain.train.rng import seed_everything
from minitrain.train.run import Inject
from minitrain.train.step_record import mean_losses
from minitrain.train.worker import Worker

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_shards(tmp_path_factory.mktemp("shards"), 1, 2, 3, 4)


def ladder(
    shards: Path,
    run: Evidence,
    expected: Evidence,
    one: Evidence,
    params: Params | None = None,
) -> dict[str, Rung]:
    """Every rung of the pipeline for a run, its replay and the one-process run."""
    config = tiny_config(params or tiny_params(), shards, 1)
    no_witness = {"witness_data": asdict(not_run("nobody was asked"))}
    own = own_rungs(config, run, expected, no_witness)
    # as stable as can be: no gap is excused
    return all_rungs(own, config, run, one, lambda most_steps: one, 1e-5)


ONE_PROCESS = ("one_process_gradients", "one_process_early", "one_process")


def state_rung(
    run: Mapping[str, Tensor], one: Mapping[str, Tensor], params: Params, **more: Any
) -> Rung:
    """Without an excuse, unless a twin is given."""
    limits = state_limits(one, start_of(params), params.train, 1e-5)
    return close_rung(run, one, limits, lambda: more.get("twin", one))


def start_of(params: Params) -> dict[str, Tensor]:
    seed_everything(params.train.seed)
    model = build_model(params.model, VOCAB_SIZE)
    return dict(model.state_dict())


ASKED = (
    "trained",
    "ranks",
    "data",
    "replay_gradients",
    "replay_parameters",
    "replay_buffers",
    "replay",
    *ONE_PROCESS,
)


def judged(
    params: Params, shards: Path, world_size: int, run: Evidence | None = None
) -> tuple[Evidence, dict[str, str]]:
    """A run, by default one without a fault, and the verdict of each rung on it."""
    run = run or train_tiny(params, shards, world_size)
    expected = replay_tiny(params, shards, run, world_size)
    found = ladder(shards, run, expected, one_process_tiny(params, shards), params)
    return run, {name: found[name].verdict for name in ASKED}


CLOSE = ("equal", "within tolerance")


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_clean_run_passes_every_rung(
    shards: Path, world_size: int, optimizer: str
) -> None:
    run, found = judged(tiny_params(optimizer=optimizer), shards, world_size)
    # calibration leaves no trace in the bits
    assert "bracketed" in {row["kind"] for row in run.results[0].timings}
    assert all(found.pop(name) in CLOSE for name in ONE_PROCESS)
    assert found.pop("ranks") == ("not run" if world_size == 1 else "equal")
    assert found.pop("replay_buffers") == "not run"
    assert set(found.values()) == {"equal"}


OTHER_MODELS = {
    "batch_norm": NORMALIZES,
    "counting": None,
    "dropout": DRAWS,
    "with_mask": None,
    "tied": None,
    "double": None,
}


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("factory", OTHER_MODELS)
def test_other_models_pass_every_rung_that_can_be_asked(
    shards: Path, factory: str, world_size: int
) -> None:
    params = with_factory(tiny_params(), f"other_models:{factory}")
    run, found = judged(params, shards, world_size)
    why = forward_of(run.rows, tiny_config(params, shards, 1)).why
    assert why == OTHER_MODELS[factory]
    gaps = [found.pop(name) for name in ONE_PROCESS]
    assert why is not None or {*gaps} <= {*CLOSE}
    has_buffers = factory in ("batch_norm", "counting", "with_mask")
    assert found.pop("replay_buffers") == ("equal" if has_buffers else "not run")
    assert set(found.values()) == {"equal"}


def test_losses_of_the_ranks_sum_to_the_loss_of_one_process(shards: Path) -> None:
    params = tiny_params()
    ranks = mean_losses(train_tiny(params, shards, 2).results)
    one = mean_losses(one_process_tiny(params, shards).results)
    assert ranks == pytest.approx(one, abs=1e-6)


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


def test_state_has_the_names_of_the_unwrapped_module(shards: Path) -> None:
    state = train_tiny(tiny_params(), shards, 2).states[0]
    assert "token_embedding.weight" in state
    assert not any(name.startswith("module.") for name in state)


def one_rank_keeps_its_gradients(worker: Worker) -> None:
    """Rank 1 reduces with the others, and throws it away."""
    sync: Any = worker.sync
    reduce = sync.on_bucket

    def keep(bucket):
        local = bucket.buffer().clone()
        return reduce(bucket).then(lambda _: local)

    if worker.rank == 1:
        sync.on_bucket = keep


CAUGHT_BY = {
    one_rank_keeps_its_gradients: "ranks",
    wrapper_bypassed: "ranks",
    sum_for_mean: "replay_gradients",
    mean_of_means: "replay_gradients",
    duplicate_samples: "data",
}


@pytest.mark.parametrize("fault", CAUGHT_BY, ids=lambda fault: fault.__name__)
def test_injected_fault_is_caught(shards: Path, fault) -> None:
    params = tiny_params()
    run = train_tiny(params, shards, 2, fault)
    if not any(row["kind"] == "buckets" for row in run.rows):
        # nothing was reduced: borrow the layout of a run that does
        layout = train_tiny(params, shards, 2).rows
        borrowed = [row for row in layout if row["kind"] == "buckets"]
        run = replace(run, rows=[*run.rows, *borrowed])
    _, found = judged(params, shards, 2, run)
    assert found[CAUGHT_BY[fault]] == "breach"
    if fault in (sum_for_mean, mean_of_means):
        # the lesson: the ranks agree with each other all the same
        assert found["ranks"] == "equal"
        assert found["one_process_gradients"] == "breach"
    if fault is sum_for_mean:
        expected = replay_tiny(params, shards, run, 2)
        rung = hashes_rung(run.rows, expected.rows, "gradients")
        assert rung.detail == "first at step 0, tensor token_embedding.weight, rank 0"
    if fault is mean_of_means:
        # other directions, not only another scale, so AdamW does not hide them
        assert found["one_process_early"] == "breach"
        assert found["one_process"] == "breach"


def test_buffers_that_rank_0_does_not_hand_out(shards: Path) -> None:
    params = with_factory(tiny_params(), "other_models:batch_norm")
    run = train_tiny(params, shards, 2, buffers_not_synchronized)
    expected = replay_tiny(params, shards, run, 2)
    found = ladder(shards, run, expected, one_process_tiny(params, shards))
    # the running statistics of rank 1 go their own way from the second step on
    assert found["replay_buffers"].detail == (
        "first at step 1, tensor middle.layer.running_mean, rank 1"
    )


def test_nan_loss_ends_training_with_one_line(shards: Path) -> None:
    params = tiny_params(learning_rate=1e30)
    with pytest.raises(UserError, match=r"loss is (nan|inf) at step [1-5] on rank"):
        train_tiny(params, shards, 2)


def logged(rows: list[Row]) -> list[str]:
    """The names of what DDP logged, in any of the steps."""
    return sorted({name for row in rows for name in row if name.startswith("ddp_")})


def test_ddp_logs_every_step_and_its_times_lie_within_ours(shards: Path) -> None:
    run = train_tiny(tiny_params(), shards, 2)
    # torch reads a clock that may be adjusted meanwhile
    slack = 0.1
    for row in [row for result in run.results for row in result.timings]:
        assert logged([row]) == sorted(f"ddp_{name}" for name in DDP_SAYS)
        ddp = {name: row[f"ddp_{name}"] for name in DDP_SAYS}
        assert min(ddp.values()) > 0
        assert max(ddp["backward_compute_ms"], ddp["comm_ms"]) <= ddp["backward_ms"]
        assert ddp["forward_ms"] <= row["forward_ms"] + slack
        # there is a barrier between
        if row["kind"] != "bracketed":
            both = ddp["forward_ms"] + ddp["backward_ms"]
            assert both <= row["forward_ms"] + row["backward_ms"] + slack
            assert row["comm_total_ms"] <= ddp["comm_ms"] + slack


def without_log(worker: Worker) -> None:
    del type(worker.sync.module)._get_ddp_logging_data


def with_nothing_timed(worker: Worker) -> None:
    worker.sync.module._get_ddp_logging_data = lambda: dict.fromkeys(LOGGED, 0)


@pytest.mark.parametrize("change", [without_log, with_nothing_timed])
def test_a_torch_without_ddps_log_has_nothing_beside_the_clock(
    shards: Path, change: Inject
) -> None:
    run = train_tiny(tiny_params(), shards, 2, change)
    rows = run.results[0].timings
    assert logged(rows) == []
    says = ddp_says(pd.DataFrame(rows).assign(recorded=False), 1)
    nothing = {"ddp": None, "ours": None, "difference_pct": None}
    assert says == dict.fromkeys(DDP_SAYS, nothing)
    # of several passes it logs the last one alone
    run = train_tiny(tiny_params(grad_accumulation_steps=2), shards, 2)
    assert logged(run.results[0].timings) == []


class WatchesCalibration(StepObserver):
    """Notes what each calibration sends, and whether it keeps buffers and generator."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker, watches=True)
        self.found: list[tuple[Traffic, bool]] = []

    def _backward_alone_ms(self) -> float:
        before = self._state()
        with CollectiveLedger() as ledger:
            took = super()._backward_alone_ms()
        same = zip(before, self._state(), strict=True)
        same_state = all(torch.equal(old, new) for old, new in same)
        self.found.append((ledger.traffic, same_state))
        return took

    def _state(self) -> list[Tensor]:
        buffers = [buffer.clone() for buffer in self.worker.model.buffers()]
        return [torch.get_rng_state(), *buffers]


def calibrations(params: Params, shards: Path) -> list[tuple[Traffic, bool]]:
    with distributed():
        config = tiny_config(params, shards, 2)
        worker = Worker(config, observer=WatchesCalibration)
        train(worker, range(NUM_STEPS))
        worker.close()
        bracketed = [r for r in worker.observer.timings if r["kind"] == "bracketed"]
        assert len(worker.observer.found) == len(bracketed) > 0
        return worker.observer.found


def found_by(params: Params, shards: Path) -> list[tuple[Traffic, bool]]:
    ranks = launch(calibrations, 2, params, shards, timeout_s=GENEROUS_S)
    return [found for rank in ranks for found in rank]


@pytest.mark.parametrize("name", ["ddp", "flat"])
def test_backward_alone_sends_nothing(shards: Path, name: str) -> None:
    """Else the account would subtract communication from communication."""
    found = found_by(tiny_params(sync=name), shards)
    assert [traffic for traffic, _ in found if traffic] == []


@pytest.mark.parametrize("factory", ["batch_norm", "dropout"])
def test_calibration_puts_buffers_and_random_numbers_back(
    shards: Path, factory: str
) -> None:
    params = with_factory(tiny_params(), f"other_models:{factory}")
    assert all(same for _, same in found_by(params, shards))


def test_epochs_with_an_uneven_tail_repeat_to_the_bit(shards: Path) -> None:
    # 50 samples, 12 a batch: the fifth batch of an epoch holds 2, so at 4 ranks two
    # ranks have none; 6 steps reach into the second epoch
    run, found = judged(tiny_params(), shards, 4)
    assert [row["tokens"] for row in run.results[3].timings][4] == 0
    assert found.pop("replay_buffers") == "not run"
    assert set(found.values()) == {*CLOSE}


def test_training_that_is_unstable_is_told_from_a_fault(shards: Path) -> None:
    """At a rate where one process itself does not repeat from a start one ULP away."""
    # how far a tensor is carried is chance, and another CPU's chance is another
    for rate in (1.0, 2.0, 3.0, 4.0):
        params = tiny_params(learning_rate=rate)
        one = one_process_tiny(params, shards)
        twin = cache(partial(run_twin, tiny_config(params, shards, 1)))
        carried = twin(None).state
        gaps = [(carried[n] - t).abs().max() for n, t in one.states[0].items()]
        if min(gaps) > 0.1:
            break
    run = train_tiny(params, shards, 2)
    # limits as of a rate that is a thousandth of this one
    limits = (tiny_params().train, 1e-5)
    nudged = state_limits(one.states[0], start_of(params), *limits)
    far = close_rung(twin(None).state, one.states[0], nudged, lambda: one.states[0])
    assert far.verdict == "breach"
    rung = one_process_rungs(run, one, *limits, twin)["one_process"]
    assert rung.verdict == "undecided"
    # the bits of the replay hold all the same
    expected = replay_tiny(params, shards, run, 2)
    assert bits_rung(run.states[0], expected.states[0]).verdict == "equal"


@dataclass(frozen=True)
class EqualWeightsInTheTail:
    """A mean of means, but only in the smaller last batch of an epoch."""

    right: Any

    def open(self, *arguments: Any) -> "EqualWeightsInTheTail":
        return EqualWeightsInTheTail(self.right.open(*arguments))

    def smaller(self) -> int | None:
        return self.right.smaller()

    def digest(self) -> int:
        return self.right.digest()

    def micro_batches(self, step: int) -> list[MicroBatch]:
        (right,) = self.right.micro_batches(step)
        share = right.global_targets // 2
        return [replace(right, num_targets=share) if step == 4 else right]

    def loss(self, model: torch.nn.Module, inputs: Any) -> Tensor:
        return self.right.loss(model, inputs)


def test_fault_that_ranks_and_replay_share_is_caught(shards: Path) -> None:
    params = tiny_params()
    run = train_tiny(params, shards, 2, spoil=EqualWeightsInTheTail)
    expected = replay_tiny(params, shards, run, 2, EqualWeightsInTheTail)
    found = ladder(shards, run, expected, one_process_tiny(params, shards))
    # one process with the whole batch is the only one that can tell
    broken = [name for name, rung in found.items() if rung.verdict == "breach"]
    assert broken == ["one_process"]
    twin = run_twin(tiny_config(params, shards, 1)).state
    one = one_process_tiny(params, shards).states[0]
    assert state_rung(run.states[0], one, params, twin=twin).verdict == "breach"


def test_weight_in_column_order_repeats_to_the_bit(shards: Path) -> None:
    """DDP's bucket holds it as it lies in memory, so the ring cuts it there."""
    params = tiny_params()
    file = shards / "transposed.py"
    file.write_text(
        "from torch import nn\n"
        "from minitrain.model.gpt import mini_gpt\n"
        "def transposed(params, vocab_size):\n"
        "    model = mini_gpt(params, vocab_size)\n"
        "    weight = model.head.weight.data\n"
        "    model.head.weight = nn.Parameter(weight.t().contiguous().t())\n"
        "    return model\n"
    )
    section = params.model.model_copy(
        update={"file": str(file), "factory": "transposed"}
    )
    params = params.model_copy(update={"model": section})
    run = train_tiny(params, shards, 3)
    expected = replay_tiny(params, shards, run, 3)
    assert hashes_rung(run.rows, expected.rows, "gradients", 3).verdict == "equal"
    assert bits_rung(run.states[0], expected.states[0]).verdict == "equal"
