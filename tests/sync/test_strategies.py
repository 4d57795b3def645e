"""Every strategy keeps what it promises, and what it promises shows a fault in it."""

import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from one_line import refusal
from subjects import MODELS, make_run
from thorough import thorough_after
from torch import Tensor, nn

from minitrain.check.data_parallel import check_data_parallel, examine
from minitrain.check.trial import run_ranks
from minitrain.comm.groups import distributed
from minitrain.comm.ring import ring_sum
from minitrain.comm.torch_private import GradBucket
from minitrain.comm.tree import tree_sum
from minitrain.core.errors import EvidenceError, UserError
from minitrain.data.batches import MicroBatch
from minitrain.harness.launcher import launch
from minitrain.proof.bits import precision_rung
from minitrain.proof.evidence import Evidence, of_kind
from minitrain.proof.replay import reduction_of
from minitrain.sync.after_backward import Flat, ReduceScatter
from minitrain.sync.catalog import STRATEGIES, find_strategy, guarantees_of
from minitrain.sync.ddp_buckets import StockDDP
from minitrain.sync.guarantees import Defaults
from minitrain.sync.sharded import _layers
from minitrain.sync.strategy import broadcast
from minitrain.train.config import RunConfig
from minitrain.train.step_record import sha256_tensor
from minitrain.train.worker import Worker

INVARIANT = ("invariant", "invariant_shm")
# at two ranks a sum has one order, so all of these are DDP to the bit
DDP_AT_TWO = (
    *("per_parameter", "flat", "reduce_scatter", "zero1", "shm", "one_copy"),
    "hierarchical",
)
SHARDED = ("zero1", "fsdp")
DROPOUT = 0.25
LIMIT_S = 300
# an optimizer has moments from its second step on
STEPS = 3


def with_dropout() -> torch.nn.Module:
    model = MODELS["batch_norm"]()
    model.norm = torch.nn.Sequential(model.norm, torch.nn.Dropout(DROPOUT))
    return model


def trial_of(name: str, model: str = "plain", **changes: Any) -> RunConfig:
    changes = {"sync": find_strategy(name), "steps": STEPS} | changes
    return replace(make_run(model), **changes)


@cache
def honest_run(name: str, world_size: int, steps: int = STEPS, **tuning: Any) -> Any:
    """A run that several tests read."""
    trial = trial_of(name, steps=steps, tuning=Defaults(**tuning))
    return run_ranks(trial, world_size, timeout_s=LIMIT_S)


def large_batches(trial: RunConfig) -> RunConfig:
    """24 samples in a batch, so that each of eight shards has some in both parts."""
    pairs = zip(trial.data.batches[::2], trial.data.batches[1::2], strict=True)
    both = [{n: torch.cat([a[n], b[n]]) for n in a} for a, b in pairs]
    return replace(trial, data=replace(trial.data, batches=both))


def worlds(*sizes: int) -> list[Any]:
    """Pairs of a strategy and a world size that it can have."""
    return [
        (name, size)
        for name in STRATEGIES
        for size in sizes
        if not (name in INVARIANT and 8 % size)
    ]


def expected(name: str) -> str:
    """Who promises no bits proves nothing."""
    return "proven" if "replay" in guarantees_of(name).promises else "undecided"


# of an even number of ranks is the next test, but those that take a power of two
@pytest.mark.parametrize(
    ("name", "world_size"),
    [*worlds(3), ("invariant", 4), ("invariant_shm", 4), ("ddp", 2)],
)
def test_strategy_keeps_its_promises(name: str, world_size: int) -> None:
    ladder = examine(trial_of(name), world_size, timeout_s=LIMIT_S)
    assert ladder.verdict == expected(name), str(ladder)
    asked = {name for name, rung in ladder.rungs.items() if rung.verdict != "not run"}
    assert {"trained", "data"} <= asked
    assert ("ranks" in asked) != guarantees_of(name).shares_parameters
    # others are not DDP as torch has it
    assert ("unwatched" in asked) == (name in ("ddp", "zero1"))
    found = asked & {"replay", "one_process", "loss"}
    assert found == guarantees_of(name).promises - {"reduced_once"}
    if "replay" not in found:
        why = f"{name} does not promise the bits of a replay"
        assert ladder.rungs["replay"].detail == why


WIRE = {"fp16_compress": torch.float16, "bf16_compress": torch.bfloat16}


@pytest.mark.parametrize("name", WIRE)
def test_type_of_what_travels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes cannot show it: both types have 16 bits."""
    sent: list[Tensor] = []

    def all_reduce(tensor: Tensor, **_: Any) -> Any:
        sent.append(tensor)
        done: Any = torch.futures.Future()
        done.set_result([tensor])
        return SimpleNamespace(get_future=lambda: done)

    monkeypatch.setattr("torch.distributed.all_reduce", all_reduce)
    strategy: Any = object.__new__(find_strategy(name))
    strategy.factor, strategy.group = 0.5, None
    buffer = torch.tensor([1.0, 1e20])
    bucket = SimpleNamespace(buffer=lambda: buffer)
    strategy.sum_over_ranks(bucket).wait()
    assert [tensor.dtype for tensor in sent] == [WIRE[name]]
    assert buffer[0] == 0.5
    # beyond float16, within bfloat16
    finite = [bool(buffer[1].isfinite())]
    finite += strategy.reference([torch.tensor([1e20])]).isfinite().tolist()
    assert finite == [name == "bf16_compress"] * 2


@pytest.mark.parametrize(
    ("name", "world_size"), thorough_after(len(worlds(2)), [*worlds(2), *worlds(4)])
)
def test_buffers_dropout_and_accumulation(name: str, world_size: int) -> None:
    trial = trial_of(name, factory=with_dropout, grad_accumulation_steps=2)
    ladder = examine(large_batches(trial), world_size, timeout_s=LIMIT_S)
    assert ladder.verdict == expected(name), str(ladder)
    if "replay" in guarantees_of(name).promises:
        assert ladder.rungs["replay_buffers"].verdict == "equal"
    elif name == "fsdp":
        assert "witness confirms the gradients" in ladder.rests_on


def wrong_on_rank_1(worker: Worker) -> None:
    """Rank 1 keeps what it has instead of the sum."""
    if worker.rank != 1:
        return
    sync: Any = worker.sync
    right = sync.sum_over_ranks

    def of_flat(flat: Tensor) -> None:
        own = flat.clone()
        right(flat)
        flat.copy_(own)

    def of_bucket(bucket: GradBucket) -> Any:
        own = bucket.buffer().clone()
        return right(bucket).then(lambda _: own)

    sync.sum_over_ranks = of_flat if isinstance(sync, Flat) else of_bucket


def twice_on_all_ranks(worker: Worker) -> None:
    """Every rank doubles the gradient: they agree, and are wrong."""
    right = worker.batches.loss
    worker.batches.loss = lambda model, inputs: right(model, inputs) * 2  # type: ignore


def gradients_forgotten(worker: Worker) -> None:
    """Every rank throws away what it has computed."""
    sync: Any = worker.sync
    start = sync.sum_over_ranks
    sync.sum_over_ranks = lambda bucket: start(bucket).then(lambda f: f.value().zero_())


def never_steps(worker: Worker) -> None:
    """The gradients are right, and no parameter moves."""
    worker.optimizer.step = lambda *_: None


def not_handed_out(worker: Worker) -> None:
    """Each rank keeps to itself the parameters that it has stepped."""
    worker.optimizer._sync_params = lambda: None  # type: ignore[attr-defined]


def shards_in_another_order(worker: Worker) -> None:
    """The tree has other branches: right but for its rounding."""
    right = worker.batches.micro_batches

    def micro_batches(step: int) -> list[MicroBatch]:
        return sorted(right(step), key=lambda part: part.shard)

    worker.batches.micro_batches = micro_batches  # type: ignore[method-assign]


FAULTS: list[tuple[str, Callable[[Worker], None], str]] = [
    ("ddp", wrong_on_rank_1, "ranks"),
    ("flat", wrong_on_rank_1, "ranks"),
    # every rank gets what the owner of a parameter made of it: the ranks agree
    ("zero1", wrong_on_rank_1, "replay_gradients"),
    ("ddp", twice_on_all_ranks, "replay_gradients"),
    ("flat", twice_on_all_ranks, "replay_gradients"),
    ("bf16_compress", twice_on_all_ranks, "replay_gradients"),
    ("fsdp", twice_on_all_ranks, "one_process_gradients"),
    ("powersgd", gradients_forgotten, "loss"),
    ("zero1", not_handed_out, "ranks"),
    ("ddp", never_steps, "trained"),
    # right within every tolerance, and still not what was promised
    *((name, shards_in_another_order, "replay_gradients") for name in INVARIANT),
]
# one_copy exchanges nothing; its faults are in test_one_copy.py
KNOWN = (*SHARDED, "ddp", "flat", "one_copy")
OTHERS = [name for name in STRATEGIES if name not in KNOWN]
FAULTS_OF_OTHERS = [(name, wrong_on_rank_1, "ranks") for name in OTHERS]


@pytest.mark.parametrize(
    ("name", "fault", "rung"),
    thorough_after(len(FAULTS), [*FAULTS, *FAULTS_OF_OTHERS]),
    ids=lambda x: getattr(x, "__name__", x),
)
def test_fault_is_caught(name: str, fault: Callable[[Worker], None], rung: str) -> None:
    # learning shows after a while
    slow = {"learning_rate": 1e-2, "steps": 60} if rung == "loss" else {"steps": 2}
    trial = trial_of(name, **slow)
    ladder = examine(trial, 2, fault, timeout_s=LIMIT_S)
    assert rung in ladder.breaches, str(ladder)


@pytest.mark.parametrize("name", DDP_AT_TWO)
def test_bits_of_ddp_at_two_ranks(name: str) -> None:
    assert same_bits(honest_run("ddp", 2), honest_run(name, 2))


def same_bits(*runs: Evidence) -> bool:
    """Of rank 0: final state, losses, gradients and parameters of every step."""
    kinds = ("gradients", "parameters", "buffers", "sha256")
    evidence = []
    for run in runs:
        rows = [*of_kind(run.rows, "batch"), *of_kind(run.rows, "tensors")]
        hashes = [[r.get(k) for k in kinds] for r in rows if not r.get("rank")]
        state = {name: sha256_tensor(tensor) for name, tensor in run.state.items()}
        evidence.append((hashes, run.losses, state))
    return evidence[0] == evidence[1]


CASES: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    name: (name, (2, 4, 8), {"factory": with_dropout, "grad_accumulation_steps": 2})
    for name in INVARIANT
} | {
    precision: ("invariant", (4,), {"precision": precision})
    for precision in ("bf16", "fp16")
}


@pytest.mark.parametrize("case", CASES)
def test_same_bits_from_1_2_4_and_8_processes(case: str) -> None:
    name, sizes, changes = CASES[case]
    trial = large_batches(trial_of(name, **changes))
    one = run_ranks(trial, 1, timeout_s=LIMIT_S)
    for world_size in sizes:
        run = run_ranks(trial, world_size, timeout_s=LIMIT_S)
        assert same_bits(one, run), world_size
    # else it would show nothing
    assert not same_bits(honest_run("ddp", 1), honest_run("ddp", 2))


def test_each_shard_starts_from_the_buffers_of_the_step() -> None:
    """A running mean as each of four shards finds it, and after the step."""
    model, seen = nn.BatchNorm1d(1), []
    with distributed():
        sync = find_strategy("invariant")(model, Defaults(logical_shards=4))
        sync.begin()
        for shard in range(4):
            with sync.micro_step(shard, shard == 3):
                seen.append(float(model.running_mean))
                model(torch.full((2, 1), shard + 1.0)).sum().backward()
        sync.reduce()
    # the first shard decides: a tenth of its mean, which is 1
    assert [*seen, float(model.running_mean)] == pytest.approx([0, 0, 0, 0, 0.1])


@pytest.mark.parametrize("without", [0, 3])
def test_a_shard_without_a_gradient_is_named(without: int) -> None:
    model = nn.ModuleDict({"used": nn.Linear(1, 1), "left_out": nn.Linear(1, 1)})
    named = pytest.raises(UserError, match=r"parameter left_out\.\w+ gets no gradient")
    with distributed(), named:
        sync = find_strategy("invariant")(model, Defaults(logical_shards=4))
        sync.begin()
        for shard in range(4):
            with sync.micro_step(shard, shard == 3):
                names = ["used"] if shard == without else ["used", "left_out"]
                sum(model[name](torch.ones(1, 1)) for name in names).backward()
        sync.reduce()


ONE_BY_ONE = {"bucket_cap_mb": 0.001, "overlap": False}
UNUSED = {"bucket_cap_mb": 0.001, "find_unused_parameters": True}
SETTINGS = [
    ("ddp", ONE_BY_ONE),
    ("shm", UNUSED),
    ("ddp", UNUSED),
    ("ddp", {"overlap": False}),
    *((name, ONE_BY_ONE) for name in ("shm", "bf16_compress", "zero1")),
    *((name, UNUSED) for name in ("bf16_compress", "zero1")),
]


@pytest.mark.parametrize(("name", "tuning"), thorough_after(4, SETTINGS))
def test_settings_of_ddps_buckets(name: str, tuning: dict[str, Any]) -> None:
    model = "spare_parameter" if "find_unused_parameters" in tuning else "plain"
    trial = trial_of(name, model, tuning=Defaults(**tuning))
    ladder = examine(trial, 3, timeout_s=LIMIT_S)
    assert ladder.verdict == expected(name), str(ladder)


def hidden_communication(name: str = "ddp", **tuning: Any) -> list[float]:
    tuning = {"bucket_cap_mb": 0.001, "steps": 2 * STEPS} | tuning
    run = honest_run(name, 2, **tuning)
    # the first steps have DDP's first buckets
    return [row["comm_hidden_ms"] for row in run.results[0].timings[2:]]


def test_without_overlap_nothing_is_sent_before_the_last_gradient() -> None:
    assert set(hidden_communication(overlap=False)) == {0}
    assert min(hidden_communication()) > 0
    # ranks could start collectives in different orders, or nothing can be hidden
    for name in ("powersgd", "shm"):
        assert set(hidden_communication(name)) == {0}


@pytest.mark.parametrize("name", ["ddp", "powersgd", "shm", "one_copy"])
def test_strategy_and_its_ddp_do_not_keep_each_other_for_ever(name: str) -> None:
    with distributed():
        sync = find_strategy(name)(nn.Linear(1, 1), Defaults())
        sync.module(torch.ones(1, 1)).sum().backward()
        sync.close()
        seen = weakref.ref(sync)
        del sync
        gc.collect()
        assert seen() is None


def test_no_passes_without_communication_where_they_would_count_as_use() -> None:
    tuning = Defaults(find_unused_parameters=True)
    with distributed():
        assert not StockDDP(MODELS["spare_parameter"](), tuning).has_account


def test_buffer_with_gaps_is_broadcast_as_it_is() -> None:
    def broadcast_twice() -> list[float]:
        with distributed() as (rank, _):
            whole = torch.full((8,), float(rank + 1))
            broadcast([whole[::2]], None)
            return whole.tolist()

    # rank 1 gets rank 0's ones in every second place, and nothing else
    assert launch(broadcast_twice, 2)[1] == [1, 2] * 4


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_sixteen_bits_repeat_to_the_bit(precision: str) -> None:
    trial = trial_of("ddp", precision=precision, steps=2 * STEPS)
    ladder = examine(trial, 3, timeout_s=LIMIT_S)
    assert ladder.verdict == "proven", str(ladder)
    assert ladder.rungs["replay"].verdict == "equal"
    assert ladder.rungs["witness_precision"].verdict == "within tolerance"
    if precision == "fp16":
        assert ladder.rungs["precision"].verdict == "equal"


OVERFLOW = 3


def overflow_on_rank_1(worker: Worker) -> None:
    if worker.rank != 1:
        return
    micro_batches = worker.batches.micro_batches
    now = 0

    def remember(step: int) -> Any:
        nonlocal now
        now = step
        return micro_batches(step)

    def spoiled(gradient: Tensor) -> Tensor:
        return gradient * (torch.inf if now == OVERFLOW else 1)

    worker.batches.micro_batches = remember  # type: ignore[method-assign]
    # of one parameter, which one rank steps
    next(worker.model.parameters()).register_hook(spoiled)


@pytest.mark.parametrize("name", ["ddp", "one_copy"])
def test_overflow_on_one_rank_skips_the_step_on_all(name: str) -> None:
    trial = trial_of(name, precision="fp16", steps=OVERFLOW + 2)
    # ranks that do not agree wait for each other
    run = run_ranks(trial, 2, overflow_on_rank_1, timeout_s=60)
    rows = {(r["rank"], r["step"]): r for r in run.rows if r["kind"] == "tensors"}
    for rank in range(2):
        before, at, after = (rows[rank, OVERFLOW + i] for i in (-1, 0, 1))
        assert at["parameters"] == before["parameters"] != after["parameters"]
        assert at["precision"]["scale"] == before["precision"]["scale"] / 2
    expected = [row for row in run.rows if row.get("rank") == 0]
    assert precision_rung(run.rows, expected).verdict == "equal"
    spoiled = rows[1, 0]
    spoiled["precision"] = {**spoiled["precision"], "scale": 1.0}
    rung = precision_rung(run.rows, expected)
    assert rung.verdict == "breach"
    assert rung.detail.startswith("step 0: rank 1 has {'scale': 1.0")
    # a run without a scaler is none in fp16
    none = [{"kind": "tensors", "step": 0, "rank": 0}]
    assert precision_rung(none, none).verdict == "breach"
    assert precision_rung([], []).verdict == "breach"


def test_layers_of_nested_containers_are_sharded_once() -> None:
    model: Any = nn.Module()
    one, two, three, model.head = (nn.Linear(3, 3) for _ in range(4))
    model.pairs = nn.ModuleList([nn.ModuleList([one]), nn.Dropout(0.0)])
    model.named = nn.ModuleList([nn.ModuleDict({"layer": two})])
    model.shared = nn.ModuleList([three] * 3)
    assert [*dict.fromkeys(_layers(model))] == [one, model.pairs[1], two, three]
    with distributed():
        sync: Any = find_strategy("fsdp")(model, Defaults())
        assert len(sync._layer_bytes) == 4


@pytest.mark.filterwarnings("ignore:.* is deprecated:FutureWarning")
def test_reduce_scatter_of_older_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(dist, "reduce_scatter_single", raising=False)
    monkeypatch.delattr(dist, "all_gather_single", raising=False)
    with distributed():
        sync = ReduceScatter(nn.Linear(3, 1), Defaults())
        flat = torch.arange(5.0)
        sync.sum_over_ranks(flat)
    assert torch.equal(flat, torch.arange(5.0))


def test_strategy_from_outside_that_is_right_or_wrong() -> None:
    class Forgets(find_strategy("toy_strategy:ThroughRankZero")):  # type: ignore
        def sum_over_ranks(self, flat: Tensor) -> None:
            super().sum_over_ranks(flat)
            flat[-1] = 0

    class Skips(find_strategy("toy_strategy:ThroughRankZero")):  # type: ignore
        # the sum is right, but a step notes no bucket
        calls = 0

        def reduce(self) -> None:
            super().reduce()
            self.calls += 1
            if self.calls == 5:
                self.trace.events.clear()

    trial = make_run()
    subject = trial.factory, trial.data.batches
    with pytest.raises(EvidenceError, match=r"step 4: embedding.* is never reduced"):
        check_data_parallel(*subject, sync=Skips)
    with pytest.raises(EvidenceError, match="replay_gradients"):
        check_data_parallel(*subject, sync=Forgets)
    options: Any = {"loss": trial.data.loss, "sync": "toy_strategy:ThroughRankZero"}
    ladder = check_data_parallel(*subject, world_size=3, **options)
    assert ladder.rungs["replay"].verdict == "equal"


NO_BUCKETS = "with a train.sync that does not use DDP's buckets"
NO_FP16 = "must be float32 or bf16 with"
REFUSED = [
    ("invariant", "logical_shards", 6, 2, "6: must be a power of two"),
    ("invariant_shm", "logical_shards", 4, 8, "4: must be a multiple of"),
    ("flat", "bucket_cap_mb", 2.0, 2, f"2.0: must be null {NO_BUCKETS}"),
    ("fsdp", "overlap", False, 2, f"false: must be true {NO_BUCKETS}"),
    ("fsdp", "precision", "fp16", 2, f"'fp16': {NO_FP16} FSDP"),
    ("powersgd", "precision", "fp16", 2, f"'fp16': {NO_FP16} PowerSGD"),
]


def test_settings_that_a_strategy_cannot_follow() -> None:
    for name, key, value, world_size, line in REFUSED:
        changes: dict[str, Any] = {"precision": "float32", key: value}
        precision = changes.pop("precision")
        require, tuning = guarantees_of(name).require, Defaults(**changes)
        message = refusal(require, tuning, world_size, precision)
        assert message.startswith(f"train.{key} = {line}")


def test_strategy_that_is_not_there_or_in_a_file_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unclosed.py").write_text("class Own(")
    (tmp_path / "leaves.py").write_text("raise SystemExit('two\\nlines')")
    monkeypatch.syspath_prepend(tmp_path)
    for name, why in {
        "no_such_module:Thing": "No module named 'no_such_module'",
        "toy_strategy:Missing": "has no attribute 'Missing'",
        "toy_strategy:dist": "must be a minitrain.sync.Strategy",
        "unclosed:Own": "SyntaxError: '(' was never closed (unclosed.py, line 1)",
        "leaves:Own": "SystemExit: two lines",
    }.items():
        message = refusal(find_strategy, name)
        assert message.startswith(f"train.sync = '{name}': ")
        assert message.endswith(why)


HOSTS = [[0, 1], [2, 4], [3]]


def first_inside_hosts(shards: Sequence[Tensor]) -> Tensor:
    return ring_sum([shards[0] + shards[1], shards[2] + shards[4], shards[3]])


@pytest.mark.parametrize("name", STRATEGIES)
def test_reference_adds_in_the_order_that_the_table_says(name: str) -> None:
    """Of five numbers that differ in size, so that the order shows in the bits."""
    orders = {"ring": ring_sum, "tree": tree_sum, "hosts": first_inside_hosts}
    wire = guarantees_of(name).wire
    sizes = torch.tensor([1e4, 1e-3, 1.0, -1e4, 0.1])
    shards = [torch.full((7,), float(size)) / 3 for size in sizes]
    narrow = [s.to(getattr(torch, wire)) if wire else s for s in shards]
    reference = reduction_of(find_strategy(name), HOSTS)
    found = reference([shard.clone() for shard in shards])
    for order, add in orders.items():
        alike = torch.equal(found, add(narrow).to(found.dtype))
        if guarantees_of(name).adds_in != "none":
            assert alike == (order == guarantees_of(name).adds_in), order
