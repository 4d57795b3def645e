"""Training over gloo: right where nothing is planted, caught where a fault is.

Each fault is a real data-parallel bug, injected without touching the code under test.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from tiny import (
    NUM_STEPS,
    Fault,
    Outcome,
    one_process_tiny,
    replay_tiny,
    tiny_params,
    tiny_shards,
    train_tiny,
    with_factory,
)
from torch import Tensor

from minitrain.analysis.account import DDP_SAYS, ddp_says
from minitrain.bench.ledger import CollectiveLedger
from minitrain.core.errors import UserError
from minitrain.core.params import Params
from minitrain.data.batches import Batch, JoinedBatches
from minitrain.distributed.groups import distributed
from minitrain.distributed.launcher import launch
from minitrain.proof.bits import (
    Rung,
    bits_rung,
    data_rung,
    hashes_rung,
    own_to_each_rank,
    ranks_rung,
    trained_rung,
)
from minitrain.proof.single_process import start_of, twin_of
from minitrain.proof.tolerances import (
    Compared,
    close_rung,
    one_process_rungs,
    state_limits,
)
from minitrain.sync.catalog import find_strategy
from minitrain.sync.stock import LOGGED, StockDDP
from minitrain.sync.strategy import DEFAULTS, Traffic
from minitrain.train.buffers import untouched_buffers
from minitrain.train.clock import Row, StepClock
from minitrain.train.loop import mean_losses
from minitrain.train.recorder import Recorder
from minitrain.train.rng import untouched_random_state
from minitrain.train.run import optimizer_of


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_shards(tmp_path_factory.mktemp("shards"), 1, 2, 3, 4)


def ladder(run: Outcome, expected: Outcome, one: Outcome) -> dict[str, Rung]:
    """Every rung of the pipeline for a run, its replay and the one-process run."""
    ours, theirs = compared(run), compared(one)
    params = tiny_params().train
    # as stable as can be: no gap is excused
    rungs = one_process_rungs(ours, theirs, params, 1e-5, lambda most_steps: theirs)
    return {
        "trained": trained_rung(run.rows),
        "ranks": ranks_rung(run.states),
        "data": data_rung(run.rows, expected.rows),
        "replay_gradients": hashes_rung(run.rows, expected.rows, "gradients"),
        "replay_parameters": hashes_rung(run.rows, expected.rows, "parameters"),
        "replay_buffers": hashes_rung(run.rows, expected.rows, "buffers"),
        "replay": bits_rung(run.states[0], expected.states[0]),
        **{name: rungs[name] for name in ONE_PROCESS},
    }


ONE_PROCESS = ("one_process_gradients", "one_process_early", "one_process")


def compared(outcome: Outcome) -> Compared:
    result = outcome.results[0]
    return Compared(
        rows=outcome.rows,
        gradients=result.kept["gradients"],
        early=result.kept["early"],
        state=outcome.states[0],
        losses=mean_losses(outcome.results),
        start=start_of(tiny_params()),
    )


def state_rung(
    run: Mapping[str, Tensor], one: Mapping[str, Tensor], params: Params, **more: Any
) -> Rung:
    """Without an excuse, unless a twin is given."""
    limits = state_limits(one, start_of(params), params.train, 1e-5)
    return close_rung(run, one, limits, lambda: more.get("twin", one))


def verdicts(run: Outcome, expected: Outcome, one: Outcome) -> dict[str, str]:
    return {name: rung.verdict for name, rung in ladder(run, expected, one).items()}


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_clean_run_passes_every_rung(
    shards: Path, world_size: int, optimizer: str
) -> None:
    params = tiny_params(optimizer=optimizer)
    run = train_tiny(params, shards, world_size)
    expected = replay_tiny(params, shards, run, world_size)
    found = verdicts(run, expected, one_process_tiny(params, shards))
    close = ("equal", "within tolerance")
    for name in ("one_process_gradients", "one_process_early", "one_process"):
        assert found.pop(name) in close
    assert found.pop("ranks") == ("not run" if world_size == 1 else "equal")
    assert found.pop("replay_buffers") == "not run"
    assert set(found.values()) == {"equal"}


OTHER_MODELS = {
    "batch_norm": "the forward pass changes buffers, each rank by its own samples",
    "dropout": "the forward pass draws random numbers, each rank its own",
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
    run = train_tiny(params, shards, world_size)
    expected = replay_tiny(params, shards, run, world_size)
    found = verdicts(run, expected, one_process_tiny(params, shards))
    close = ("equal", "within tolerance")
    why = own_to_each_rank(run.rows)
    assert why == OTHER_MODELS[factory]
    for name in ("one_process_gradients", "one_process_early", "one_process"):
        verdict = found.pop(name)
        assert why is not None or verdict in close
    has_buffers = factory in ("batch_norm", "with_mask")
    assert found.pop("replay_buffers") == ("equal" if has_buffers else "not run")
    assert set(found.values()) == {"equal"}


def test_losses_of_the_ranks_sum_to_the_loss_of_one_process(shards: Path) -> None:
    params = tiny_params()
    ranks = mean_losses(train_tiny(params, shards, 2).results)
    one = mean_losses(one_process_tiny(params, shards).results)
    assert ranks == pytest.approx(one, abs=1e-6)


def test_each_rank_has_its_own_seed_and_all_start_from_rank_0(shards: Path) -> None:
    def start_and_wrapped() -> tuple[float, float]:
        from minitrain.distributed.groups import distributed
        from minitrain.train.run import start_model

        with distributed() as (rank, _):
            model = start_model(tiny_params(), rank)
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


def one_rank_keeps_its_gradients(
    rank: int, sync: StockDDP, batches: JoinedBatches
) -> None:
    reduce = sync._reduce

    def keep(bucket):
        local = bucket.buffer().clone()
        return reduce(bucket).then(lambda _: local)

    if rank == 1:
        # DDP refuses a second hook, so the planted one replaces what the first calls
        sync._reduce = keep
    from torch._C._distributed_c10d import GradBucket

    def hook(state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        return sync._reduce(bucket)

    rewrap(sync, hook)


def rewrap(sync: StockDDP, hook) -> None:
    from minitrain.distributed.groups import unwrap, wrap_for_ddp

    sync._ddp = sync.module = wrap_for_ddp(unwrap(sync.module))
    sync._ddp.register_comm_hook(None, hook)


def sum_instead_of_mean(rank: int, sync: StockDDP, batches: JoinedBatches) -> None:
    sync._factor = 1.0


def mean_of_means(rank: int, sync: StockDDP, batches: JoinedBatches) -> None:
    from minitrain.train import loop as training

    training.weighted_loss = lambda loss, batch, world_size: loss


def duplicated_sample(rank: int, sync: StockDDP, batches: JoinedBatches) -> None:
    whole = batches.shards[0].samples

    class WithDuplicate:
        def __getitem__(self, index: int):
            return whole[index - 1 if index % 2 else index]

    if rank == 1:
        batches.shards[0].samples = WithDuplicate()


def wrapper_bypassed(rank: int, sync: StockDDP, batches: JoinedBatches) -> None:
    sync.module = sync._ddp.module


CAUGHT_BY = {
    one_rank_keeps_its_gradients: "ranks",
    wrapper_bypassed: "ranks",
    sum_instead_of_mean: "replay_gradients",
    mean_of_means: "replay_gradients",
    duplicated_sample: "data",
}


@pytest.mark.parametrize("fault", CAUGHT_BY, ids=lambda fault: fault.__name__)
def test_planted_fault_is_caught(shards: Path, fault) -> None:
    params = tiny_params()
    run = train_tiny(params, shards, 2, fault)
    if not any(row["kind"] == "buckets" for row in run.rows):
        # nothing was reduced: borrow the layout of a run that does
        layout = train_tiny(params, shards, 2).rows
        run.rows += [row for row in layout if row["kind"] == "buckets"]
    expected = replay_tiny(params, shards, run, 2)
    found = verdicts(run, expected, one_process_tiny(params, shards))
    assert found[CAUGHT_BY[fault]] == "breach"
    if fault in (sum_instead_of_mean, mean_of_means):
        # the lesson: the ranks agree with each other all the same
        assert found["ranks"] == "equal"
        assert found["one_process_gradients"] == "breach"
    if fault is mean_of_means:
        # other directions, not only another scale, so AdamW does not hide them
        assert found["one_process_early"] == "breach"
        assert found["one_process"] == "breach"


def test_buffers_that_rank_0_does_not_hand_out(shards: Path) -> None:
    def not_broadcast(rank: int, sync: StockDDP, batches: JoinedBatches) -> None:
        sync._ddp.broadcast_buffers = False

    params = with_factory(tiny_params(), "other_models:batch_norm")
    run = train_tiny(params, shards, 2, not_broadcast)
    expected = replay_tiny(params, shards, run, 2)
    found = ladder(run, expected, one_process_tiny(params, shards))
    # the running statistics of rank 1 go their own way from the second step on
    assert found["replay_buffers"].detail == (
        "first at step 1, tensor middle.layer.running_mean, rank 1"
    )


def test_sum_for_mean_is_named_at_step_0_with_its_tensor(shards: Path) -> None:
    params = tiny_params()
    run = train_tiny(params, shards, 2, sum_instead_of_mean)
    expected = replay_tiny(params, shards, run, 2)
    rung = hashes_rung(run.rows, expected.rows, "gradients")
    assert rung.detail == "first at step 0, tensor token_embedding.weight, rank 0"


def test_adam_hides_the_scale_of_gradients_but_the_gradients_do_not(
    shards: Path,
) -> None:
    """Why gradients are compared before the optimizer."""
    params = tiny_params()
    run = train_tiny(params, shards, 2, sum_instead_of_mean)
    right = train_tiny(params, shards, 2)
    last = NUM_STEPS - 1
    losses = [mean_losses(outcome.results)[last] for outcome in (run, right)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    gradients = [outcome.results[0].kept["gradients"] for outcome in (run, right)]
    # 2 ranks: the sum is twice the mean, exactly
    for name, gradient in gradients[0].items():
        assert torch.equal(gradient, 2 * gradients[1][name])


def test_nan_loss_ends_training_with_one_line(shards: Path) -> None:
    params = tiny_params(learning_rate=1e30)
    with pytest.raises(UserError, match=r"loss is (nan|inf) at step [1-5] on rank"):
        train_tiny(params, shards, 2)


def test_timing_hook_has_the_bits_of_stock_ddp(shards: Path) -> None:
    """At 3 ranks, where multiplying by 1/3 and dividing by 3 differ."""

    def without_hook(rank: int, sync: StockDDP, batches: JoinedBatches) -> None:
        from minitrain.distributed.groups import unwrap, wrap_for_ddp

        sync._ddp = sync.module = wrap_for_ddp(unwrap(sync.module))

    params = tiny_params()
    hooked = train_tiny(params, shards, 3)
    stock = train_tiny(params, shards, 3, without_hook)
    assert not any(row["kind"] == "buckets" for row in stock.rows)
    assert bits_rung(hooked.states[0], stock.states[0]).verdict == "equal"


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


def without_log(rank: int, sync: StockDDP, batches: JoinedBatches) -> None:
    del type(sync._ddp)._get_ddp_logging_data


def with_other_keys(rank: int, sync: StockDDP, batches: JoinedBatches) -> None:
    sync._ddp._get_ddp_logging_data = lambda: {"forward_compute": 1}


def with_nothing_timed(rank: int, sync: StockDDP, batches: JoinedBatches) -> None:
    sync._ddp._get_ddp_logging_data = lambda: dict.fromkeys(LOGGED, 0)


@pytest.mark.parametrize("change", [without_log, with_other_keys, with_nothing_timed])
def test_a_torch_without_ddps_log_has_nothing_beside_the_clock(
    shards: Path, change: Fault
) -> None:
    run = train_tiny(tiny_params(), shards, 2, change)
    rows = run.results[0].timings
    assert logged(rows) == []
    says = ddp_says(pd.DataFrame(rows).assign(recorded=False), 1)
    nothing = {"ddp": None, "ours": None, "difference_pct": None}
    assert says == dict.fromkeys(DDP_SAYS, nothing)


def test_of_several_passes_ddp_logs_none(shards: Path) -> None:
    run = train_tiny(tiny_params(grad_accumulation_steps=2), shards, 2)
    assert logged(run.results[0].timings) == []


def test_calibration_leaves_no_trace(shards: Path) -> None:
    """The same bits with and without bracketed steps in between."""
    params = tiny_params()
    with_calibration = train_tiny(params, shards, 2)
    kinds = [row["kind"] for row in with_calibration.results[0].timings]
    assert "bracketed" in kinds
    expected = replay_tiny(params, shards, with_calibration, 2)
    assert bits_rung(with_calibration.states[0], expected.states[0]).bytes_equal


def silent_traffic(shards: Path, name: str) -> tuple[list[Traffic], list[Row]]:
    """What each calibration of a run sends, and the rows of its steps."""
    from minitrain.train import loop as training
    from minitrain.train.run import rank_batches, start_model

    silent_backward_ms = training._silent_backward_ms
    sends: list[Traffic] = []

    def watched(*rest):
        with CollectiveLedger() as ledger:
            took = silent_backward_ms(*rest)
        sends.append(ledger.traffic)
        return took

    # in this rank's process alone
    training._silent_backward_ms = watched
    params = tiny_params(sync=name)
    with distributed() as (rank, world_size):
        model = start_model(params, rank)
        sync = find_strategy(name)(model, params.train)
        batches = rank_batches(params, shards / "world-2", rank, world_size)
        optimizer = optimizer_of(model, params.train)
        steps = range(NUM_STEPS)
        result = training.train(
            sync, batches, optimizer, steps, Recorder(model, ()), StepClock()
        )
        sync.close()
        return sends, result.timings


@pytest.mark.parametrize("name", ["ddp", "flat"])
def test_silent_backward_sends_nothing(shards: Path, name: str) -> None:
    """Else the account would subtract communication from communication."""
    for sends, timings in launch(silent_traffic, 2, shards, name, timeout_s=60):
        bracketed = [row for row in timings if row["kind"] == "bracketed"]
        assert len(sends) == len(bracketed) > 0
        assert sends == [{}] * len(sends)


def test_calibration_puts_buffers_and_random_numbers_back() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5))
    before = {name: t.clone() for name, t in model.state_dict().items()}
    random = torch.get_rng_state()
    with untouched_buffers(model), untouched_random_state():
        model(torch.ones(4, 3))
    assert bits_rung(model.state_dict(), before).verdict == "equal"
    assert torch.equal(torch.get_rng_state(), random)


def test_epochs_with_an_uneven_tail_repeat_to_the_bit(shards: Path) -> None:
    # 50 samples, 12 a batch: the fifth batch of an epoch holds 2, so at 4 ranks two
    # ranks have none; 6 steps reach into the second epoch
    params = tiny_params()
    run = train_tiny(params, shards, 4)
    assert [row["tokens"] for row in run.results[3].timings][4] == 0
    expected = replay_tiny(params, shards, run, 4)
    one = one_process_tiny(params, shards)
    found = verdicts(run, expected, one)
    assert found.pop("replay_buffers") == "not run"
    assert set(found.values()) == {"equal", "within tolerance"}


@pytest.mark.parametrize("learning_rate", [1e-4, 1e-3, 1e-2])
def test_no_false_alarm_over_seeds(shards: Path, learning_rate: float) -> None:
    for seed in range(10):
        params = tiny_params(seed=seed, learning_rate=learning_rate)
        one, replayed = one_process_tiny(params, shards), None
        ranks = [start_replay(params, shards, one, w) for w in (2, 4)]
        for replayed in ranks:
            rung = state_rung(replayed.states[0], one.states[0], params)
            assert rung.verdict != "breach", (seed, rung)


def test_training_that_is_unstable_is_told_from_a_fault(shards: Path) -> None:
    """At a rate where one process itself does not repeat from a start one ULP away."""
    params = tiny_params(learning_rate=3.0)
    one, run = one_process_tiny(params, shards), train_tiny(params, shards, 2)
    twin = twin_of(params, shards / "world-1")
    # limits as of a rate that is a thousandth of this one
    limits = (tiny_params().train, 1e-5)
    nudged = state_limits(one.states[0], start_of(params), *limits)
    far = close_rung(twin(None).state, one.states[0], nudged, lambda: one.states[0])
    assert far.verdict == "breach"
    rung = one_process_rungs(compared(run), compared(one), *limits, twin)["one_process"]
    assert rung.verdict == "undecided"
    # the bits of the replay hold all the same
    expected = replay_tiny(params, shards, run, 2)
    assert bits_rung(run.states[0], expected.states[0]).verdict == "equal"


def test_training_is_stable_at_the_default_rate(shards: Path) -> None:
    params = tiny_params()
    twin = twin_of(params, shards / "world-1")(None).state
    one = one_process_tiny(params, shards).states[0]
    assert state_rung(twin, one, params).verdict == "within tolerance"


def equal_weights_in_the_tail(rank: int, sync: object, batches: JoinedBatches) -> None:
    """A mean of means, but only in the smaller last batch of an epoch."""
    whole = batches.parts

    def parts(step: int) -> list[Batch]:
        (right,) = whole(step)
        share = right.global_targets // 2
        return [replace(right, num_targets=share) if step == 4 else right]

    batches.parts = parts


def test_fault_that_ranks_and_replay_share_is_caught(shards: Path) -> None:
    params = tiny_params()
    run = train_tiny(params, shards, 2, equal_weights_in_the_tail)
    expected = replay_tiny(params, shards, run, 2, equal_weights_in_the_tail)
    found = ladder(run, expected, one_process_tiny(params, shards))
    # one process with the whole batch is the only one that can tell
    broken = [name for name, rung in found.items() if rung.verdict == "breach"]
    assert broken == ["one_process"]
    twin = twin_of(params, shards / "world-1")(None).state
    one = one_process_tiny(params, shards).states[0]
    assert state_rung(run.states[0], one, params, twin=twin).verdict == "breach"


def start_replay(params, shards: Path, one: Outcome, world_size: int) -> Outcome:
    """The replay has the bits of the ranks (tested above) and starts in no time."""
    names = list(one.states[0])
    layout = [{"kind": "buckets", "step": 0, "buckets": [{"parameters": names}]}]
    whole = Outcome([], [], layout)
    return replay_tiny(params, shards, whole, world_size)


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
