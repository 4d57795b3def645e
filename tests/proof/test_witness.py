"""The witness shares no code with a run and detects faults in its record.

Each test injects one fault into the record of a correct run of two ranks.
"""

import ast
import copy
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bugs import mean_of_means
from project import ROOT
from subjects import Bigrams, make_run
from tiny import tiny_params
from torch import Tensor, nn

from minitrain.check.data_parallel import examine
from minitrain.check.trial import run_ranks
from minitrain.data.shards import tokenize_corpus, write_shards
from minitrain.proof import replay
from minitrain.proof.evidence import Evidence
from minitrain.proof.witness import corpus as corpus_of_witness
from minitrain.proof.witness import gradients as judged
from minitrain.proof.witness import optimizer as stepped
from minitrain.proof.witness.corpus import Corpus
from minitrain.proof.witness.examine import examine_batches
from minitrain.proof.witness.passes import Computer
from minitrain.proof.witness.record import Record, Task, compare, sha256
from minitrain.train.config import RunConfig, config_of

ALLOWED = {"torch", "numpy", "ruamel"}
Spoil = Callable[[dict[str, Any]], Any]


def test_it_imports_nothing_of_what_it_examines() -> None:
    for path in (ROOT / "minitrain/proof/witness").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                own = name.startswith("minitrain.proof.witness.")
                root = name.partition(".")[0]
                assert own or root in ALLOWED | sys.stdlib_module_names, (path, name)


def task_of(trial: RunConfig, **changes: Any) -> Task:
    return replace(
        Task(
            build=lambda: trial.start_model(0),
            loss=trial.data.loss,
            count=trial.data.count,
            world_size=2,
            num_steps=trial.steps,
            hash_every=trial.hash_every,
            optimizer=trial.optimizer,
            learning_rate=trial.learning_rate,
            precision=trial.precision,
        ),
        **changes,
    )


def record_of(run: Evidence) -> dict[str, Any]:
    return {
        "rows": run.rows,
        "losses": run.losses,
        "tensors": run.sampled,
        "state": run.states[0],
    }


@pytest.fixture(scope="module")
def honest() -> Callable[[str], tuple[RunConfig, dict[str, Any]]]:
    """A run of each optimizer, with a copy of its record to modify."""

    @cache
    def run(optimizer: str) -> tuple[RunConfig, Evidence]:
        trial = make_run(optimizer=optimizer)
        return trial, run_ranks(trial, 2)

    def fresh(optimizer: str) -> tuple[RunConfig, dict[str, Any]]:
        trial, outcome = run(optimizer)
        return trial, copy.deepcopy(record_of(outcome))

    return fresh


def asked(trial: RunConfig, record: dict[str, Any], **changes: Any) -> dict[str, Any]:
    task = task_of(trial, **changes)
    return examine_batches(task, trial.data.batches, Record(**record))


def breached(rungs: dict[str, Any]) -> list[str]:
    return [name for name, rung in rungs.items() if rung["verdict"] == "breach"]


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_honest_run(honest: Any, optimizer: str) -> None:
    rungs = asked(*honest(optimizer))
    # it compares no bits
    found = {rung["verdict"] for rung in rungs.values()}
    assert found == {"passed", "within tolerance"}
    assert list(rungs) == [
        "witness_data",
        "witness_hashes",
        "witness_step",
        "witness_mean",
        "witness_probe",
        "witness_gradients",
        "witness_loss",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["after", "moments"])
def test_a_large_tensor_is_compared_to_its_end(
    honest: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(stepped, "PIECE", 7)
    trial, record = honest("adamw")
    task, same = task_of(trial), Record(**record)
    assert stepped.step_rung(task, same)["verdict"] == "within tolerance"
    named = [k for k in record["tensors"] if k.startswith(f"1/{kind}/")]
    large = max(named, key=lambda key: record["tensors"][key].numel())
    assert record["tensors"][large].numel() > 7
    record["tensors"][large].view(-1)[-1] += 1e-3
    found = stepped.step_rung(task, Record(**record))
    assert found["verdict"] == "breach"
    assert large.split("/")[2] in found["detail"]


def rows_of(record: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [row for row in record["rows"] if row["kind"] == kind]


def drop(record: dict[str, Any], kind: str, index: int) -> None:
    gone = rows_of(record, kind)[index]
    record["rows"] = [row for row in record["rows"] if row is not gone]


def drop_tensors(record: dict[str, Any], start: str, end: str) -> None:
    for key in [*record["tensors"]]:
        if key.startswith(start) and key.endswith(end):
            del record["tensors"][key]


def a_parameter_is_left_out(record: dict[str, Any]) -> None:
    drop_tensors(record, "", "/after/hidden.bias")
    for row in rows_of(record, "tensors"):
        del row["parameters"]["hidden.bias"]


def moments_not_kept(record: dict[str, Any]) -> None:
    for key, tensor in record["tensors"].items():
        if key.endswith("/exp_avg"):
            record["tensors"][key] = torch.zeros_like(tensor)


def double(record: dict[str, Any], key: str) -> None:
    record["tensors"][key] = 2 * record["tensors"][key]


def cut(record: dict[str, Any], key: str) -> None:
    record["tensors"][key] = record["tensors"][key][1:]


def part(record: dict[str, Any], row: int) -> dict[str, Any]:
    return rows_of(record, "fed")[row]["parts"][0]


# by the rung that detects them
FAULTS: dict[str, dict[str, Spoil]] = {
    "witness_data": {
        "swap_ranks": lambda r: [
            row.update(rank=1 - row["rank"]) for row in rows_of(r, "fed")
        ],
        "a_sample_twice": lambda r: part(r, 3).update(
            samples=2 * part(r, 3)["samples"][::2]
        ),
        "rank_is_silent": lambda r: drop(r, "fed", -1),
        "targets_counted_twice": lambda r: part(r, 2).update(
            targets=2 * part(r, 2)["targets"]
        ),
        # at a step that is not sampled
        "other_global_targets": lambda r: rows_of(r, "fed")[7].update(global_targets=1),
        "ledger_of_other_samples": lambda r: rows_of(r, "batch")[3]["ranks"].reverse(),
    },
    "witness_hashes": {
        "a_parameter_is_left_out": a_parameter_is_left_out,
        # another tensor: the previous step ends with the old one
        "step_starts_elsewhere": lambda r: r["tensors"].update(
            {"1/before/hidden.bias": 0.9 * r["tensors"]["1/before/hidden.bias"]}
        ),
        # all ranks have the same hashes, but the tensor is another
        "gradient_of_another_hash": lambda r: double(r, "1/gradients/hidden.bias"),
        "parameter_of_another_hash": lambda r: double(r, "0/after/hidden.bias"),
        "step_not_recorded": lambda r: drop(r, "tensors", 1),
        "rank_has_other_hashes": lambda r: [
            row["gradients"].update({"hidden.bias": "0" * 64})
            for row in rows_of(r, "tensors")
            if (row["step"], row["rank"]) == (2, 1)
        ],
        "row_that_is_there_twice": lambda r: r["rows"].append(rows_of(r, "tensors")[0]),
        "other_final_state": lambda r: r.update(
            state={name: t + 1 for name, t in r["state"].items()}
        ),
        # tensors without hashes must at least have the shape of the model's
        "moments_of_another_shape": lambda r: cut(r, "5/moments/hidden.bias/exp_avg"),
        "moments_of_no_parameter": lambda r: r["tensors"].update(
            {"5/moments/other/exp_avg": torch.ones(2)}
        ),
        "count_of_several_elements": lambda r: r["tensors"].update(
            {"5/moments/hidden.bias/step": torch.ones(2)}
        ),
        "state_of_another_shape": lambda r: cut(r, "0/before/hidden.bias"),
        "missing_loss": lambda r: r["losses"].pop(),
        "loss_is_nan": lambda r: r.update(losses=[*r["losses"][:-1], float("nan")]),
    },
    "witness_step": {
        "optimizer_made_anew": lambda r: drop_tensors(r, "5/moments/", ""),
        "moments_not_kept": moments_not_kept,
    },
    "witness_loss": {
        "loss_of_the_last_step": lambda r: r["losses"].append(
            1.0001 * r["losses"].pop()
        )
    },
    "witness_probe": {
        "no_probe": lambda r: drop(r, "probe", 0),
        "probe_loss": lambda r: rows_of(r, "probe")[0].update(
            loss=1.0001 * rows_of(r, "probe")[0]["loss"]
        ),
    },
}


@pytest.mark.parametrize(
    ("rung", "spoil"),
    [
        pytest.param(rung, spoil, id=name)
        for rung, faults in FAULTS.items()
        for name, spoil in faults.items()
    ],
)
def test_fault_in_the_record(honest: Any, rung: str, spoil: Spoil) -> None:
    trial, record = honest("adamw")
    spoil(record)
    assert breached(asked(trial, record)) == [rung]


@pytest.mark.parametrize("ran", ["adamw", "sgd"])
def test_another_optimizer_or_learning_rate(honest: Any, ran: str) -> None:
    trial, record = honest(ran)
    other = "sgd" if ran == "adamw" else "adamw"
    for changes in (
        {"optimizer": other},
        {"learning_rate": 10 * trial.learning_rate},
        {"learning_rate": 1.001 * trial.learning_rate},
    ):
        assert breached(asked(trial, record, **changes)) == ["witness_step"]


def rehashed(record: dict[str, Any], key: str, tensor: Tensor) -> None:
    """Modify a sampled tensor and its hashes consistently."""
    step, kind, name = key.split("/", 2)
    record["tensors"][key] = tensor
    what = {"gradients": "gradients", "after": "parameters"}[kind]
    for row in rows_of(record, "tensors"):
        if row["step"] == int(step):
            row[what][name] = sha256(tensor)


@pytest.mark.parametrize("step", [0, 1, 5])
def test_gradient_off_by_more_than_rounding(honest: Any, step: int) -> None:
    """A fault of a hundred times the rounding of a tensor, at most a ten-thousandth of
    it: a tolerance a million times too wide, or from the largest tensor, misses it.
    """
    trial, record = honest("adamw")
    key = f"{step}/gradients/hidden.bias"
    right = record["tensors"][key]
    spoilt = right + 1e-4 * right.abs().max()
    rehashed(record, key, spoilt)
    rungs = asked(trial, record)
    assert "witness_gradients" in breached(rungs)
    assert (
        f"step {step}: gradient of hidden.bias" in rungs["witness_gradients"]["detail"]
    )


def test_rounding_is_what_the_run_itself_does(honest: Any) -> None:
    """The last bit of one element is within tolerance, everywhere."""
    trial, record = honest("adamw")
    key = "0/gradients/hidden.bias"
    right = record["tensors"][key]
    rehashed(record, key, torch.nextafter(right, right + 1))
    assert "witness_gradients" not in breached(asked(trial, record))


def test_gradient_of_a_parameter_that_is_not_used(honest: Any) -> None:
    """The right gradient and the recorded one must both leave it out."""
    trial, record = honest("adamw")

    def without_bias(model: nn.Module, batch: Any) -> Tensor:
        bias = model.get_parameter("hidden.bias").requires_grad_(False)
        try:
            return trial.data.loss(model, batch)
        finally:
            bias.requires_grad_(True)

    found = asked(trial, record, loss=without_bias)["witness_gradients"]
    assert found["verdict"] == "breach"
    assert "gradient of hidden.bias" in found["detail"]


def test_model_that_accepts_the_batch_of_a_rank_only(honest: Any) -> None:
    """Before, a traceback."""
    trial, record = honest("adamw")

    def picky(model: nn.Module, batch: Any) -> Tensor:
        if (rows := len(batch["input_ids"])) != 6:
            raise ValueError(f"6 rows, not {rows}")
        return trial.data.loss(model, batch)

    found = asked(trial, record, loss=picky)
    for name in ("witness_gradients", "witness_loss", "witness_mean"):
        why = "in training ValueError: 6 rows, not 12"
        assert (found[name]["verdict"], found[name]["detail"]) == ("not run", why)


def step_again(record: dict[str, Any], task: Task, step: int) -> None:
    """Replace the parameters after a step by AdamW's result of recorded moments."""
    tensors = record["tensors"]
    of_step = Record(**record)
    gradients, moments = of_step.of(step, "gradients"), of_step.of(step, "moments")
    for name, gradient in gradients.items():
        zero = torch.zeros_like(gradient)
        m, v = (moments.get(f"{name}/{k}", zero) for k in ("exp_avg", "exp_avg_sq"))
        count = 1 + float(moments.get(f"{name}/step", 0.0))
        values = (tensors[f"{step}/before/{name}"], gradient, m, v)
        wide = (value.double() for value in values)
        after = stepped.next_value(task, *wide, count)[0].to(gradient.dtype)
        rehashed(record, f"{step}/after/{name}", after)


@pytest.mark.parametrize(
    ("step", "spoilt", "factor", "why"),
    [
        (1, "/exp_avg", 0.5, "exp_avg after step 0"),
        (1, "/exp_avg_sq", 0.5, "exp_avg_sq after step 0"),
        (5, "", None, "step 5: the optimizer has taken 0 steps"),
        (5, "hidden.bias/", None, "step 5: hidden.bias has taken 0 steps, at least"),
    ],
)
def test_moments_that_the_step_was_taken_with(
    honest: Any, step: int, spoilt: str, factor: float | None, why: str
) -> None:
    """The step fits the moments, but earlier steps do not lead to them."""
    trial, record = honest("adamw")
    task, tensors = task_of(trial), record["tensors"]
    step_again(record, task, step)
    assert stepped.step_rung(task, Record(**record))["verdict"] == "within tolerance"
    start = f"{step}/moments/"
    for key in [k for k in tensors if k.startswith(start) and spoilt in k]:
        if factor is None:
            del tensors[key]
        elif key.endswith(spoilt):
            tensors[key] = factor * tensors[key]
    step_again(record, task, step)
    found = stepped.step_rung(task, Record(**record))
    assert found["verdict"] == "breach"
    assert why in found["detail"]


def test_nan_is_beyond_everything() -> None:
    for found, right in ((torch.nan, 0.0), (0.0, torch.nan), (torch.inf, 0.0)):
        pair = torch.tensor([0.0, found]), torch.tensor([0.0, right])
        rung = compare(*pair, 1.0, "it").rung()
        # without a number, since JSON has no NaN
        assert (rung["verdict"], rung["max_abs_diff"]) == ("breach", None)


# ---- faults that the run and its replay share


class Noisy(Bigrams):
    """Dropout, an unused random draw, or a buffer that counts steps."""

    def __init__(self, kind: str) -> None:
        dropout = nn.Dropout(0.1 if kind == "dropout" else 0.0)
        super().__init__(nn.Sequential(nn.LayerNorm(16), dropout))
        self.kind = kind
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        if self.kind == "unused draw":
            torch.rand(1)
        if self.kind == "counter":
            self.steps += 1
        return super().forward(input_ids, labels)


@pytest.fixture
def every_mean_counts_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replay computes a mean of means, as the ranks do."""
    right = replay._compute

    def compute(model: nn.Module, batches: Any, step: int, divisor: int, *more: Any):
        parts = [
            replace(part, num_targets=1, global_targets=divisor)
            for part in batches.micro_batches(step)
        ]
        alike = SimpleNamespace(micro_batches=lambda step: parts, loss=batches.loss)
        right(model, alike, step, divisor, *more)

    monkeypatch.setattr(replay, "_compute", compute)


@pytest.mark.usefixtures("every_mean_counts_alike")
@pytest.mark.parametrize(
    ("kind", "precision"),
    [
        *((k, "float32") for k in ("dropout", "unused draw", "counter")),
        ("dropout", "bf16"),
    ],
)
def test_mean_of_means_that_the_replay_shares(kind: str, precision: str) -> None:
    """A regression: this passed when one process was not compared."""
    trial = make_run(steps=3)
    trial = replace(trial, factory=lambda: Noisy(kind), precision=precision)
    ladder = examine(trial, 2, mean_of_means)
    assert ladder.rungs["replay_gradients"].verdict == "equal"
    assert ladder.rungs["replay"].verdict == "equal"
    assert ladder.verdict == "breach"
    assert "witness_probe" in ladder.breaches


class Centered(nn.Module):
    """Subtracts the mean of the batch, also in eval mode."""

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden - hidden.mean(0)


@pytest.mark.slow
def test_model_that_depends_on_its_batch_is_replayed_only() -> None:
    """One process computes a different result, and neither is right by definition."""
    trial = replace(make_run(steps=2), factory=lambda: Bigrams(Centered()))
    ladder = examine(trial, 2)
    assert ladder.verdict == "replay only"
    # slices never replace the whole batch
    assert ladder.rungs["witness_probe"].verdict == "not run"
    assert ladder.rungs["one_process"].verdict == "not run"


@cache
def noisy_run() -> tuple[RunConfig, Evidence]:
    trial = replace(make_run(steps=3), factory=lambda: Noisy("dropout"))
    return trial, run_ranks(trial, 2)


def scale_gradients(record: dict[str, Any], step: int, factor: float) -> None:
    for key in [k for k in record["tensors"] if k.startswith(f"{step}/gradients/")]:
        rehashed(record, key, factor * record["tensors"][key])


@pytest.mark.slow
def test_training_with_dropout_is_not_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Draws are unknown, but their effect on loss and gradient is bounded."""
    # all of 256 draws take a minute
    monkeypatch.setattr(judged, "MANY_DRAWS", 32)
    trial, run = noisy_run()
    rungs = asked(trial, record_of(run))
    assert rungs["witness_gradients"]["verdict"] == "not run"
    assert rungs["witness_spread"]["verdict"] == "within tolerance"
    for factor in (0.0, 2.0, -1.0):
        spoilt = copy.deepcopy(record_of(run))
        scale_gradients(spoilt, 0, factor)
        assert "witness_spread" in breached(asked(trial, spoilt))
    spoilt = record_of(run) | {"losses": [2 * loss for loss in run.losses]}
    assert "witness_spread" in breached(asked(trial, spoilt))
    still = run_ranks(trial, 2, lambda worker: worker.model.eval())
    rung = asked(trial, record_of(still))["witness_spread"]
    assert "equal to eval mode" in rung["detail"]


def test_batch_norm_is_compared_part_by_part() -> None:
    trial = make_run("batch_norm", steps=3)
    record = record_of(run_ranks(trial, 2))
    rungs = asked(trial, record)
    assert rungs["witness_gradients"]["verdict"] == "within tolerance"
    scale_gradients(record, 0, 1.01)
    assert "witness_gradients" in breached(asked(trial, record))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_sixteen_bits_that_were_not_computed_with(honest: Any, precision: str) -> None:
    """The record of a float32 run that claims 16 bits."""
    trial, record = honest("adamw")
    probe = rows_of(record, "probe")[0]
    record["rows"].append(probe | {"name": "rounded"})
    for key in [k for k in record["tensors"] if k.startswith("probe/")]:
        record["tensors"][key.replace("probe/", "rounded/")] = record["tensors"][key]
    rungs = asked(trial, record, precision=precision)
    finer = f"is more precise than {precision} allows"
    assert rungs["witness_precision"]["detail"] == f"the rounded {finer}"
    assert rungs["witness_gradients"]["detail"] == f"step 0 {finer}"


def test_steps_with_equal_targets_cannot_tell_a_mean_of_means() -> None:
    trial = make_run()
    alike = [
        {key: tensor[[0] * len(tensor)] for key, tensor in batch.items()}
        if step in (0, 1, 5)
        else batch
        for step, batch in enumerate(trial.data.batches)
    ]
    trial = replace(trial, data=replace(trial.data, batches=alike))
    record = record_of(run_ranks(trial, 2))
    rungs = asked(trial, record)
    why = "slices have equal targets in the compared steps only"
    assert rungs["witness_gradients"]["detail"] == why
    # the step of the probe can
    assert [row["step"] for row in rows_of(record, "probe")] == [4]
    assert rungs["witness_probe"]["verdict"] == "within tolerance"
    rows_of(record, "probe")[0]["step"] = 5
    assert "witness_probe" in breached(asked(trial, record))


def test_sampled_steps_have_the_first_smaller_batch_and_one_by_the_data() -> None:
    trial = make_run(steps=12)
    batches = [*trial.data.batches]
    batches[3] = {key: tensor[:8] for key, tensor in batches[3].items()}
    trial = replace(trial, data=replace(trial.data, batches=batches))
    drawn = sorted(trial.recorded)[trial.data.digest() % 12]
    assert trial.sampled == {0, 1, 3, drawn, 11}
    record = record_of(run_ranks(trial, 2))
    assert breached(asked(trial, record)) == []
    for key in [key for key in record["tensors"] if key.startswith("3/")]:
        del record["tensors"][key]
    assert breached(asked(trial, record)) == ["witness_hashes"]


@pytest.mark.slow
@pytest.mark.parametrize("count", [12, 50])
def test_witness_and_run_sample_the_same_steps_of_a_corpus(
    tmp_path: Path, count: int
) -> None:
    """Run and witness compute them independently; 50 samples end in a smaller batch."""
    texts = [f"{'word ' * (1 + i % 9)}{i}" for i in range(count)]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    params = tiny_params(num_steps=23, hash_every=4)
    block, policy = params.model.block_size, params.shard.long_samples
    samples, _ = tokenize_corpus(texts, block, policy)
    write_shards(tmp_path / "world-2", samples, 2)
    config = config_of(params, tmp_path / "world-2", 2)
    file = tmp_path / "params.yaml"
    sections = {"model": params.model, "train": params.train, "shard": params.shard}
    file.write_text(json.dumps({k: v.model_dump() for k, v in sections.items()}))
    task = Corpus(corpus, file).task(2, None)
    assert {*task.promised()} == config.recorded
    assert task.sampled() == config.sampled
    smaller = -(-len(samples) // 12) - 1 if len(samples) % 12 else None
    assert task.smaller == smaller


def test_values_outside_the_state_are_drawn_from_the_seed_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a buffer that is not persistent, which no checkpoint restores."""
    params = tiny_params()
    file = tmp_path / "params.yaml"
    sections = {"model": params.model, "train": params.train, "shard": params.shard}
    file.write_text(json.dumps({k: v.model_dump() for k, v in sections.items()}))
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"text": "a word"}) + "\n")
    task = Corpus(tmp_path / "corpus.jsonl", file).task(2, None)
    monkeypatch.setattr(corpus_of_witness, "build", lambda *_: torch.rand(3))
    found = task.build()
    torch.manual_seed(params.train.seed)
    assert torch.equal(torch.rand(3), found)


class Tied(Bigrams):
    """An output layer with the weights of the embedding."""

    def __init__(self) -> None:
        super().__init__(nn.LayerNorm(16))
        self.head.weight = self.embedding.weight


def test_tied_parameter_is_nudged_under_all_its_names() -> None:
    trial = replace(make_run(steps=2), factory=Tied)
    task, model = task_of(trial), Tied()
    state = {name: t.detach().clone() for name, t in model.state_dict().items()}
    record = Record([], [], {}, {})
    moved = Computer(task, model, record, lambda step: None).nudged(state, 1)
    assert torch.equal(moved["embedding.weight"], moved["head.weight"])
    for name in ("head.weight", "hidden.weight"):
        assert not torch.equal(moved[name], state[name])


class WithTable(Bigrams):
    """A parameter of integers, which no optimizer steps."""

    def __init__(self) -> None:
        super().__init__(nn.LayerNorm(16))
        self.table = nn.Parameter(torch.arange(4), requires_grad=False)


def test_parameter_of_integers_is_not_examined() -> None:
    ladder = examine(replace(make_run(steps=2), factory=WithTable), 2)
    assert ladder.breaches == []
    assert "integers: table" in ladder.rungs["witness_step"].detail
