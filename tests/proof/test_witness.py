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

from minitrain.check.data_parallel import examine, witness
from minitrain.check.trial import run_ranks
from minitrain.proof import replay
from minitrain.proof.evidence import Evidence, of_kind
from minitrain.proof.witness import corpus as corpus_of_witness
from minitrain.proof.witness import gradients as judged
from minitrain.proof.witness import optimizer as stepped
from minitrain.proof.witness.corpus import Corpus
from minitrain.proof.witness.passes import Computer
from minitrain.proof.witness.record import Record, Task, compare, sha256
from minitrain.train.config import RunConfig

ALLOWED = {"torch", "numpy", "ruamel"}
Spoil = Callable[[Any], Any]


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


@pytest.fixture(scope="module")
def honest() -> Callable[[str], tuple[RunConfig, Evidence]]:
    """A run of each optimizer, with a copy of its evidence to modify."""

    @cache
    def run(optimizer: str) -> tuple[RunConfig, Evidence]:
        trial = make_run(optimizer=optimizer)
        return trial, run_ranks(trial, 2)

    return lambda optimizer: copy.deepcopy(run(optimizer))


def asked(trial: RunConfig, run: Evidence, **changes: Any) -> dict[str, Any]:
    """What the witness says of ``run``, which is described by ``trial``."""
    return witness(replace(trial, **changes), run, 2)


def record_of(run: Evidence) -> Record:
    return Record(run.rows, run.losses, run.sampled, run.state)


def step_rung(trial: Any, run: Evidence) -> dict[str, Any]:
    """What it says of the optimizer's steps, whatever it says of the hashes."""
    return stepped.step_rung(trial, record_of(run))


def breached(rungs: dict[str, Any]) -> list[str]:
    return [name for name, rung in rungs.items() if rung["verdict"] == "breach"]


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_honest_run(honest: Any, optimizer: str) -> None:
    rungs = asked(*honest(optimizer))
    # it compares no bits
    found = {rung["verdict"] for rung in rungs.values()}
    assert found == {"passed", "within tolerance"}
    names = "data hashes step mean probe gradients loss"
    assert list(rungs) == [f"witness_{name}" for name in names.split()]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["after", "moments"])
def test_a_large_tensor_is_compared_to_its_end(
    honest: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(stepped, "PIECE", 7)
    trial, run = honest("adamw")
    assert step_rung(trial, run)["verdict"] == "within tolerance"
    named = [k for k in run.sampled if k.startswith(f"1/{kind}/")]
    large = max(named, key=lambda key: run.sampled[key].numel())
    assert run.sampled[large].numel() > 7
    run.sampled[large].view(-1)[-1] += 1e-3
    found = step_rung(trial, run)
    assert found["verdict"] == "breach"
    assert large.split("/")[2] in found["detail"]


def rows_of(run: Evidence, kind: str) -> list[Any]:
    return of_kind(run.rows, kind)


def drop(run: Any, kind: str, index: int) -> None:
    run.rows.remove(rows_of(run, kind)[index])


def drop_tensors(run: Any, start: str, end: str) -> None:
    for key in [*run.sampled]:
        if key.startswith(start) and key.endswith(end):
            del run.sampled[key]


def a_parameter_is_left_out(run: Any) -> None:
    drop_tensors(run, "", "/after/hidden.bias")
    for row in rows_of(run, "tensors"):
        del row["parameters"]["hidden.bias"]


def scale(run: Any, key: str, factor: float = 2.0) -> None:
    run.sampled[key] = factor * run.sampled[key]


def part(run: Any, row: int) -> dict[str, Any]:
    return rows_of(run, "fed")[row]["parts"][0]


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
        "step_starts_elsewhere": lambda r: scale(r, "1/before/hidden.bias", 0.9),
        # all ranks have the same hashes, but the tensor is another
        "gradient_of_another_hash": lambda r: scale(r, "1/gradients/hidden.bias"),
        "state_of_another_type": lambda r: r.sampled.update(
            {"0/before/hidden.bias": r.sampled["0/before/hidden.bias"].bfloat16()}
        ),
        "parameter_of_another_hash": lambda r: scale(r, "0/after/hidden.bias"),
        "step_not_recorded": lambda r: drop(r, "tensors", 1),
        "rank_has_other_hashes": lambda r: [
            row["gradients"].update({"hidden.bias": "0" * 64})
            for row in rows_of(r, "tensors")
            if (row["step"], row["rank"]) == (2, 1)
        ],
        "row_that_is_there_twice": lambda r: r.rows.append(rows_of(r, "tensors")[0]),
        "other_final_state": lambda r: r.states[0].update(
            {name: tensor + 1 for name, tensor in r.state.items()}
        ),
        "missing_loss": lambda r: r.losses.pop(),
        "loss_is_nan": lambda r: r.losses.__setitem__(-1, torch.nan),
    },
    "witness_step": {
        "optimizer_made_anew": lambda r: drop_tensors(r, "5/moments/", ""),
    },
    "witness_loss": {
        "loss_of_the_last_step": lambda r: r.losses.append(1.0001 * r.losses.pop())
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
    trial, run = honest("adamw")
    spoil(run)
    assert breached(asked(trial, run)) == [rung]


@pytest.mark.parametrize("ran", ["adamw", "sgd"])
def test_another_optimizer_or_learning_rate(honest: Any, ran: str) -> None:
    trial, run = honest(ran)
    other = "sgd" if ran == "adamw" else "adamw"
    for changes in (
        {"optimizer": other},
        {"learning_rate": 10 * trial.learning_rate},
        {"learning_rate": 1.001 * trial.learning_rate},
    ):
        assert breached(asked(trial, run, **changes)) == ["witness_step"]


def rehashed(run: Any, key: str, tensor: Tensor) -> None:
    """Modify a sampled tensor and its hashes consistently."""
    step, kind, name = key.split("/", 2)
    run.sampled[key] = tensor
    what = {"gradients": "gradients", "after": "parameters"}[kind]
    for row in rows_of(run, "tensors"):
        if row["step"] == int(step):
            row[what][name] = sha256(tensor)


@pytest.mark.parametrize("step", [0, 1, 5])
def test_gradient_off_by_more_than_rounding(honest: Any, step: int) -> None:
    """A fault of a hundred times the rounding of a tensor, at most a ten-thousandth of
    it: a tolerance a million times too wide, or from the largest tensor, misses it.
    """
    trial, run = honest("adamw")
    key = f"{step}/gradients/hidden.bias"
    right = run.sampled[key]
    rehashed(run, key, right + 1e-4 * right.abs().max())
    found = asked(trial, run)["witness_gradients"]
    assert found["verdict"] == "breach"
    assert f"step {step}: gradient of hidden.bias" in found["detail"]


def test_gradient_of_a_parameter_that_is_not_used(honest: Any) -> None:
    """The right gradient and the recorded one must both leave it out."""
    trial, run = honest("adamw")

    def without_bias(model: nn.Module, batch: Any) -> Tensor:
        bias = model.get_parameter("hidden.bias").requires_grad_(False)
        try:
            return trial.data.loss(model, batch)
        finally:
            bias.requires_grad_(True)

    data = replace(trial.data, loss=without_bias)
    found = asked(trial, run, data=data)["witness_gradients"]
    assert found["verdict"] == "breach"
    assert "gradient of hidden.bias" in found["detail"]


def test_model_that_accepts_the_batch_of_a_rank_only(honest: Any) -> None:
    """Before, a traceback."""
    trial, run = honest("adamw")

    def picky(model: nn.Module, batch: Any) -> Tensor:
        if (rows := len(batch["input_ids"])) != 6:
            raise ValueError(f"6 rows, not {rows}")
        return trial.data.loss(model, batch)

    found = asked(trial, run, data=replace(trial.data, loss=picky))
    for name in ("witness_gradients", "witness_loss", "witness_mean"):
        why = "in training ValueError: 6 rows, not 12"
        assert (found[name]["verdict"], found[name]["detail"]) == ("not run", why)


def step_again(run: Evidence, trial: Any, step: int) -> None:
    """Replace the parameters after a step by AdamW's result of recorded moments."""
    record = record_of(run)
    moments = record.of(step, "moments")
    for name, gradient in record.of(step, "gradients").items():
        zero = torch.zeros_like(gradient)
        m, v = (moments.get(f"{name}/{k}", zero) for k in ("exp_avg", "exp_avg_sq"))
        count = 1 + float(moments.get(f"{name}/step", 0.0))
        values = (run.sampled[f"{step}/before/{name}"], gradient, m, v)
        wide = (value.double() for value in values)
        after = stepped.next_value(trial, *wide, count)[0].to(gradient.dtype)
        rehashed(run, f"{step}/after/{name}", after)


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
    trial, run = honest("adamw")
    step_again(run, trial, step)
    assert step_rung(trial, run)["verdict"] == "within tolerance"
    start = f"{step}/moments/"
    for key in [k for k in run.sampled if k.startswith(start) and spoilt in k]:
        if factor is None:
            del run.sampled[key]
        elif key.endswith(spoilt):
            scale(run, key, factor)
    step_again(run, trial, step)
    found = step_rung(trial, run)
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


def scale_gradients(run: Any, step: int, factor: float) -> None:
    for key in [k for k in run.sampled if k.startswith(f"{step}/gradients/")]:
        rehashed(run, key, factor * run.sampled[key])


@pytest.mark.slow
def test_training_with_dropout_is_not_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Draws are unknown, but their effect on loss and gradient is bounded."""
    # all of 256 draws take a minute
    monkeypatch.setattr(judged, "MANY_DRAWS", 32)
    trial = replace(make_run(steps=3), factory=lambda: Noisy("dropout"))
    run = run_ranks(trial, 2)
    rungs = asked(trial, run)
    assert rungs["witness_gradients"]["verdict"] == "not run"
    assert rungs["witness_spread"]["verdict"] == "within tolerance"
    for factor in (0.0, 2.0, -1.0):
        spoilt = copy.deepcopy(run)
        scale_gradients(spoilt, 0, factor)
        assert "witness_spread" in breached(asked(trial, spoilt))
    spoilt = replace(run, losses=[2 * loss for loss in run.losses])
    assert "witness_spread" in breached(asked(trial, spoilt))
    still = run_ranks(trial, 2, lambda worker: worker.model.eval())
    rung = asked(trial, still)["witness_spread"]
    assert "equal to eval mode" in rung["detail"]


def test_batch_norm_is_compared_part_by_part() -> None:
    trial = make_run("batch_norm", steps=3)
    run = run_ranks(trial, 2)
    assert asked(trial, run)["witness_gradients"]["verdict"] == "within tolerance"
    scale_gradients(run, 0, 1.01)
    assert "witness_gradients" in breached(asked(trial, run))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_sixteen_bits_that_were_not_computed_with(honest: Any, precision: str) -> None:
    """The record of a float32 run that claims 16 bits."""
    trial, run = honest("adamw")
    run.rows.append(rows_of(run, "probe")[0] | {"name": "rounded"})
    for key in [k for k in run.sampled if k.startswith("probe/")]:
        run.sampled[key.replace("probe/", "rounded/")] = run.sampled[key]
    rungs = asked(trial, run, precision=precision)
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
    run = run_ranks(trial, 2)
    rungs = asked(trial, run)
    why = "slices have equal targets in the compared steps only"
    assert rungs["witness_gradients"]["detail"] == why
    # the step of the probe can
    assert [row["step"] for row in rows_of(run, "probe")] == [4]
    assert rungs["witness_probe"]["verdict"] == "within tolerance"
    rows_of(run, "probe")[0]["step"] = 5
    assert "witness_probe" in breached(asked(trial, run))


def test_sampled_steps_have_the_first_smaller_batch_and_one_by_the_data() -> None:
    trial = make_run(steps=12)
    batches = [*trial.data.batches]
    batches[3] = {key: tensor[:8] for key, tensor in batches[3].items()}
    trial = replace(trial, data=replace(trial.data, batches=batches))
    drawn = sorted(trial.recorded)[trial.data.digest() % 12]
    assert trial.sampled == {0, 1, 3, drawn, 11}
    run = run_ranks(trial, 2)
    assert breached(asked(trial, run)) == []
    drop_tensors(run, "3/", "")
    assert breached(asked(trial, run)) == ["witness_hashes"]


def task_of(folder: Path, texts: list[str]) -> Task:
    """The task that the witness makes of a corpus and a small params.yaml."""
    params, corpus = folder / "params.yaml", folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    sections = {"model", "train", "shard"}
    params.write_text(tiny_params().model_dump_json(include=sections))
    return Corpus(corpus, params).task(2, None)


@pytest.mark.parametrize(("count", "smaller"), [(5, None), (12, None), (13, 1)])
def test_first_step_of_a_corpus_with_a_smaller_batch(
    tmp_path: Path, count: int, smaller: int | None
) -> None:
    """A batch has twelve samples."""
    texts = [f"word {number}" for number in range(count)]
    assert task_of(tmp_path, texts).smaller == smaller


def test_values_outside_the_state_are_drawn_from_the_seed_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a buffer that is not persistent, which no checkpoint restores."""
    task = task_of(tmp_path, ["a word"])
    monkeypatch.setattr(corpus_of_witness, "build", lambda *_: torch.rand(3))
    found = task.build()
    torch.manual_seed(tiny_params().train.seed)
    assert torch.equal(torch.rand(3), found)


def test_tied_parameter_is_nudged_under_all_its_names() -> None:
    model = Bigrams(nn.LayerNorm(16))
    model.head.weight = model.embedding.weight
    state = {name: t.detach().clone() for name, t in model.state_dict().items()}
    nothing: Any = None
    task: Any = SimpleNamespace(build=lambda: model)
    moved = Computer(task, model, nothing, nothing).nudged(state, 1)
    assert torch.equal(moved["embedding.weight"], moved["head.weight"])
    for name in ("head.weight", "hidden.weight"):
        assert not torch.equal(moved[name], state[name])


def test_parameter_of_integers_is_not_examined() -> None:
    def with_table() -> nn.Module:
        model = Bigrams(nn.LayerNorm(16))
        # no optimizer steps it
        model.table = nn.Parameter(torch.arange(4), requires_grad=False)
        return model

    ladder = examine(replace(make_run(steps=2), factory=with_table), 2)
    assert ladder.breaches == []
    assert "of integers" in ladder.rungs["witness_step"].detail
