"""Faults injected in this project's own source, most of them where run and replay share
a line, each with what must see it.

``caught_by`` is a stage ("shard"), the equivalence stage and a rung that breaches there
("equivalence: witness_loss"), or a test ("tests/analysis/test_account.py::test_name").
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STAGE_FAULTS = "tests/project/test_stage_faults.py::"
INDEPENDENT_MODEL = (
    "tests/model/test_gpt.py::test_against_an_independent_implementation"
)
BATCHES = "minitrain/data/batches.py"
ALL_TARGETS = "global_targets = int(self.targets[everyone].sum())"
OWN_TARGETS = (
    "mine = rank_part(everyone, self.shards[0], self.num_shards)\n"
    "        global_targets = int(self.targets[mine].sum()) * self.num_shards"
)
STOCK = "minitrain/sync/stock.py"
STRATEGY = "minitrain/sync/strategy.py"
WORKER = "minitrain/train/worker.py"
EQUIVALENCE, VERIFY, REPLAY = (
    f"stages/{stage}.py" for stage in ("equivalence", "verify", "replay")
)
WITH_DROPOUT = {
    "model.file": "tests/support/other_models.py",
    "model.factory": "dropout",
}


@dataclass(frozen=True)
class Edit:
    """``old`` stands in ``file`` exactly once, and becomes ``new``."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """One fault; ``params`` are what it needs beside the small parameters."""

    name: str
    what: str
    caught_by: str
    edits: tuple[Edit, ...]
    params: dict[str, Any] = field(default_factory=dict)

    @property
    def is_for_a_test(self) -> bool:
        """Whether a named test must see it; else the pipeline."""
        return self.caught_by.startswith("tests/")

    def inject(self, folder: Path) -> None:
        """Spoil the copy of the project in ``folder``."""
        for edit in self.edits:
            path = folder / edit.file
            text = path.read_text()
            count = text.count(edit.old)
            assert count == 1, (
                f"{self.name}: {edit.file} has the old text {count} times"
            )
            path.write_text(text.replace(edit.old, edit.new))


def mutant(
    name: str, what: str, caught_by: str, file: str, old: str, new: str, **params: Any
) -> Mutant:
    """A fault of one edit; ``train`` parameters by their names."""
    changes = {f"train.{key}": value for key, value in params.items()}
    return Mutant(name, what, caught_by, (Edit(file, old, new),), changes)


DATA = [
    mutant(
        "same_batch",
        "every step trains on the first batch of the epoch",
        "equivalence: witness_data",
        BATCHES,
        "self.order.batch(step_of_epoch)",
        "self.order.batch(0)",
    ),
    mutant(
        "epoch_ignored",
        "the batches never hear of a new epoch",
        "equivalence: witness_data",
        BATCHES,
        "if epoch != self.order.epoch:",
        "if False:",
    ),
    mutant(
        "same_shuffle",
        "each epoch has the order of the first",
        "equivalence: witness_data",
        "minitrain/data/order.py",
        "np.random.default_rng([self.seed, epoch])",
        "np.random.default_rng([self.seed, 0])",
    ),
    mutant(
        "one_sample_in_every_batch",
        "one sample is in every batch of an epoch, others in none",
        "equivalence: witness_data",
        "minitrain/data/order.py",
        "return np.array(ids, np.int64)",
        "return np.array([self._columns[0][0], *ids[1:]], np.int64)",
    ),
    mutant(
        "last_batch_dropped",
        "what is left at the end of an epoch is never trained on",
        "equivalence: witness_data",
        "minitrain/data/order.py",
        "return -(-num_samples // global_batch_size)",
        "return num_samples // global_batch_size",
    ),
    mutant(
        "ranks_swap_shards",
        "the ranks read each other's shard",
        "equivalence: witness_data",
        WORKER,
        "mine = shards_of(self.rank, self.world_size, count)",
        "mine = shards_of(self.world_size - 1 - self.rank, self.world_size, count)",
    ),
    mutant(
        "shards_swapped_for_all",
        "the ranks of the run and of the replay read each other's shard",
        "equivalence: witness_data",
        BATCHES,
        "        self.shards, self.num_shards = ",
        "        shards = [num_shards - 1 - shard for shard in shards]\n"
        "        self.shards, self.num_shards = ",
    ),
    mutant(
        "shards_in_blocks",
        "a rank's shard is a block of the corpus, not every W-th sample",
        "shard",
        "minitrain/data/shards.py",
        "return samples[rank::world_size]",
        "size = len(samples) // world_size\n"
        "    return samples[rank * size : (rank + 1) * size]",
    ),
    mutant(
        "no_end_mark",
        "samples lose the mark at their end",
        "equivalence: witness_data",
        "minitrain/data/text.py",
        'text.encode("utf-8") + BOUNDARY',
        'text.encode("utf-8")',
    ),
    mutant(
        "last_piece_dropped",
        "of a sample longer than the block, the last piece is thrown away",
        "equivalence: witness_data",
        "minitrain/data/text.py",
        "for start in starts]",
        "for start in starts[:-1]]",
    ),
    mutant(
        "targets_off_by_one",
        "targets.npy counts the first token of a sample as a target",
        "equivalence: witness_data",
        "minitrain/data/shards.py",
        "(samples.lengths() - 1)",
        "(samples.lengths())",
    ),
    mutant(
        "block_cut_short",
        "the last token of each sample is not trained on",
        "equivalence: witness_data",
        BATCHES,
        "torch.from_numpy(tokens.astype(np.int64))",
        "torch.from_numpy(tokens[:-1].astype(np.int64))",
    ),
    mutant(
        "labels_shifted_twice",
        "the batches shift the labels, and the model shifts them again",
        "equivalence: witness_data",
        BATCHES,
        "labels[row, : len(values)] = values",
        "labels[row, : len(values) - 1] = values[1:]",
    ),
    mutant(
        "padding_trained_on",
        "labels of padding are token 0, and the loss is a mean over them too",
        "equivalence: witness_data",
        BATCHES,
        "torch.full_like(input_ids, IGNORE_INDEX)",
        "torch.full_like(input_ids, 0)",
    ),
    mutant(
        "local_token_counts",
        "each rank weighs by its own token count: a mean of means",
        "equivalence: witness_data",
        BATCHES,
        ALL_TARGETS,
        OWN_TARGETS,
    ),
    # what acts between the first steps and the last
    mutant(
        "loss_negated_in_the_middle",
        "the loss is negated in the second epoch, without a sampled step",
        "equivalence: witness_gradients",
        BATCHES,
        "return causal_lm_loss(model, inputs)",
        "loss = causal_lm_loss(model, inputs)\n"
        "        return -loss if self.order.epoch == 1 else loss",
    ),
    mutant(
        "last_batch_weighs_double",
        "the smaller last batch of an epoch has twice its weight",
        "equivalence: witness_data",
        BATCHES,
        ALL_TARGETS,
        f"{ALL_TARGETS}\n"
        "        if len(everyone) < self.order.global_batch_size:\n"
        "            global_targets //= 2",
    ),
]
COMPUTING = [
    Mutant(
        "local_token_counts_alone",
        "the same, and no run with one process is asked for",
        "equivalence: one_process_gradients",
        (Edit(BATCHES, ALL_TARGETS, OWN_TARGETS),),
        {"gloo.world_sizes": [2]},
    ),
    mutant(
        "logged_loss_plus_3",
        "the losses in losses.csv are 3 too high",
        "equivalence: witness_loss",
        "minitrain/train/observer.py",
        "(value * micro_batch.num_targets / micro_batch.global_targets)",
        "((value + 3) * micro_batch.num_targets / micro_batch.global_targets)",
    ),
    Mutant(
        "summed_for_all",
        "run and replay both sum the ranks' gradients instead of averaging them",
        "equivalence: witness_gradients",
        (
            Edit(STOCK, "self.factor = 1.0 / self.world_size", "self.factor = 1.0"),
            Edit(
                "minitrain/proof/replay.py",
                "gradients.append(_scaled_gradients(model, 1.0 / divisor))",
                "gradients.append(_scaled_gradients(model, 1.0))",
            ),
        ),
    ),
    Mutant(
        "loss_scaled_for_all",
        "run and replay both double the loss before backward",
        "equivalence: witness_gradients",
        (
            Edit(WORKER, "return loss * share", "return loss * (2 * share)"),
            Edit(
                "minitrain/proof/replay.py",
                "weight = micro_batch.num_targets * divisor",
                "weight = 2 * micro_batch.num_targets * divisor",
            ),
        ),
    ),
    Mutant(
        "last_rank_dropped_for_all",
        "the sum leaves out the last rank, in run and reference, with dropout",
        "equivalence: reference",
        (
            Edit(
                "minitrain/comm/tree.py",
                "return torch.add(*terms, out=out)",
                "return torch.mul(terms[0], 1, out=out)",
            ),
        ),
        {**WITH_DROPOUT, "train.sync": "shm"},
    ),
    mutant(
        "gradients_not_exchanged",
        "the hook gives back the rank's own gradient",
        "equivalence: ranks",
        STOCK,
        "        return work.get_future().then(lambda future: future.value()[0])",
        "        mine = buffer.clone()\n"
        "        return work.get_future().then(lambda future: mine)",
    ),
    mutant(
        "hook_doubles",
        "the timing hook does what DDP without it does not",
        "equivalence: unwatched",
        STOCK,
        "buffer = bucket.buffer().mul_(self.factor)",
        "buffer = bucket.buffer().mul_(2 * self.factor)",
    ),
    mutant(
        "bf16_in_float32",
        "bf16 computes in float32",
        "equivalence: witness_precision",
        "minitrain/train/precision.py",
        "return torch.autocast(self._device_type, self._dtype)",
        "return nullcontext()",
        precision="bf16",
    ),
    mutant(
        "fp16_in_float32",
        "fp16 computes in float32",
        "equivalence: witness_precision",
        "minitrain/train/precision.py",
        "return torch.autocast(self._device_type, self._dtype)",
        "return nullcontext()",
        precision="fp16",
    ),
    mutant(
        "rate_times_10",
        "the optimizer gets ten times the learning rate",
        "equivalence: witness_step",
        STRATEGY,
        "make(self.model.parameters(), lr=learning_rate)",
        "make(self.model.parameters(), lr=10 * learning_rate)",
    ),
    mutant(
        "no_weight_decay",
        "AdamW without its weight decay",
        "equivalence: witness_step",
        STRATEGY,
        "lr=learning_rate)",
        "lr=learning_rate, weight_decay=0)",
    ),
    mutant(
        "large_epsilon",
        "AdamW with an epsilon of 1e-3",
        "equivalence: witness_step",
        STRATEGY,
        "lr=learning_rate)",
        "lr=learning_rate, eps=1e-3)",
    ),
    mutant(
        "adam_for_adamw",
        "Adam where AdamW was asked for",
        "equivalence: witness_step",
        "minitrain/train/config.py",
        '"adamw": torch.optim.AdamW',
        '"adamw": torch.optim.Adam',
    ),
    mutant(
        "adamw_for_sgd",
        "AdamW where SGD was asked for",
        "equivalence: witness_step",
        "minitrain/train/config.py",
        '"sgd": torch.optim.SGD',
        '"sgd": torch.optim.AdamW',
        optimizer="sgd",
    ),
    mutant(
        "no_residual_connection",
        "attention replaces the residual stream instead of adding to it",
        INDEPENDENT_MODEL,
        "minitrain/model/gpt.py",
        "x = x + self.attention(self.norm1(x))",
        "x = self.attention(self.norm1(x))",
    ),
    mutant(
        "model_shifts_twice",
        "the model's loss looks two tokens ahead",
        INDEPENDENT_MODEL,
        "minitrain/model/gpt.py",
        "logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()",
        "logits[:, :-2].flatten(0, 1), labels[:, 2:].flatten()",
    ),
    mutant(
        "model_sees_the_future",
        "attention is not causal",
        INDEPENDENT_MODEL,
        "minitrain/model/gpt.py",
        "scaled_dot_product_attention(q, k, v, is_causal=True)",
        "scaled_dot_product_attention(q, k, v)",
    ),
]
RECORDING = [
    mutant(
        "rank_on_no_host",
        "the run forgets the first rank of each host when it notes who shares one",
        "replay",
        "minitrain/train/step_record.py",
        '{"hosts": trace.hosts}',
        '{"hosts": [host[1:] for host in trace.hosts]}',
        sync="hierarchical",
    ),
    mutant(
        "hash_of_a_page",
        "only the first 4,096 bytes of a tensor are hashed",
        "equivalence: witness_hashes",
        "minitrain/train/step_record.py",
        "hashlib.sha256(bytes_of(whole(tensor)))",
        "hashlib.sha256(bytes_of(whole(tensor))[:4096])",
    ),
    mutant(
        "three_steps_recorded",
        "fewer steps are recorded than hash_every promises",
        "equivalence: witness_hashes",
        "minitrain/train/step_record.py",
        "steps = {*first, *range(0, num_steps, hash_every), max(0, last - 1), last}",
        "steps = {*first}",
    ),
]
# Healthy data cannot show what a stage would overlook: the tests inject a fault in the
# files between two stages, and the stage must refuse it.
STAGES = [
    mutant(
        "verify_state_with_itself",
        "verify compares the run's state with itself, not with the replay's",
        STAGE_FAULTS + "test_state_of_the_replay",
        VERIFY,
        'read_evidence(replay, [replay / "state.pt"], sampled=False)',
        "read_evidence(replay, files[:1], sampled=False)",
    ),
    mutant(
        "verify_hashes_with_themselves",
        "verify compares the run's hashes with themselves",
        STAGE_FAULTS + "test_hash",
        VERIFY,
        'read_evidence(replay, [replay / "state.pt"], sampled=False)',
        'read_evidence(folder, [replay / "state.pt"])',
    ),
    mutant(
        "verify_reads_rank_0_for_all",
        "verify takes rank 0's state for that of every rank",
        STAGE_FAULTS + "test_state_of_one_rank",
        VERIFY,
        "states/state-rank-{rank}.pt",
        "states/state-rank-0.pt",
    ),
    mutant(
        "one_process_with_itself",
        "equivalence compares the run of one process with itself",
        STAGE_FAULTS + "test_evidence_far_from_one_process",
        "minitrain/proof/ladder.py",
        "one_process_rungs(run, one, config, atol, twin)",
        "one_process_rungs(one, one, config, atol, twin)",
    ),
    mutant(
        "rungs_of_verify_dropped",
        "equivalence leaves out the rungs that verify wrote",
        STAGE_FAULTS + "test_breach_that_verify_found",
        "minitrain/proof/runs.py",
        "for name, rung in recorded.items()}",
        "for name, rung in {}.items()}",
    ),
    mutant(
        "breach_not_raised",
        "equivalence writes a breach and ends well",
        STAGE_FAULTS + "test_breach_that_verify_found",
        EQUIVALENCE,
        'raise EvidenceError(f"equivalence: {line}")',
        "print(line)",
    ),
    mutant(
        "replay_copies_the_state",
        "the replay writes the run's state as its own",
        STAGE_FAULTS + "test_replay_does_not_copy_the_state",
        REPLAY,
        'save_tensors(out / "state.pt", again.state)',
        'run = Path(f"data/runs/gloo-{world_size}/states/state-rank-0.pt")\n'
        '    save_tensors(out / "state.pt", torch.load(run))',
    ),
    mutant(
        "replay_copies_the_hashes",
        "the replay writes the run's hashes as its own",
        STAGE_FAULTS + "test_replay_does_not_copy_the_hashes",
        REPLAY,
        "write_records(out, again.results, threads)",
        "write_records(out, again.results, threads)\n"
        '    run = Path(f"data/runs/gloo-{world_size}/hashes.jsonl")\n'
        '    (out / "hashes.jsonl").write_text(run.read_text())',
    ),
    mutant(
        "tolerance_a_million_times",
        "the tolerance for gradients is a million times too wide",
        STAGE_FAULTS + "test_evidence_far_from_one_process",
        "minitrain/proof/tolerances.py",
        "GRADIENT_SHARE = 1e-5",
        "GRADIENT_SHARE = 1e1",
    ),
    mutant(
        "witness_a_million_times",
        "what the witness allows rounding is a million times too wide",
        STAGE_FAULTS + "test_loss_of_one_step",
        "minitrain/proof/witness/gradients.py",
        "FACTOR = 16",
        "FACTOR = 16e6",
    ),
    mutant(
        "witness_not_heard",
        "the ladder leaves out what the witness found",
        STAGE_FAULTS + "test_loss_of_one_step",
        "minitrain/proof/ladder.py",
        "rungs |= testimony",
        "pass",
    ),
]
MEASURING = [
    mutant(
        "warm_up_summarized",
        "the timing stage hands a warm-up of 0 to the summary",
        STAGE_FAULTS + "test_slow_warm_up_is_not_summarized",
        "stages/timing.py",
        "warmup = params.train.num_warmup_steps",
        "warmup = 0",
    ),
    mutant(
        "warm_up_in_all_statistics",
        "statistics are made of warm-up steps too",
        STAGE_FAULTS + "test_slow_warm_up_is_not_summarized",
        "minitrain/analysis/account.py",
        'timings["step"] >= num_warmup_steps) & ~',
        'timings["step"] >= 0) & ~',
    ),
    mutant(
        "padding_counted_in_a_run",
        "tokens of a step count padding",
        "tests/train/test_loop.py::test_clean_run_passes_every_rung[4-adamw]",
        "minitrain/train/observer.py",
        "sum(one.num_targets for one in computed)",
        'sum(one.inputs["input_ids"].numel() for one in computed)',
    ),
    mutant(
        "padding_counted_in_a_turn",
        "tokens of a turn in the speed comparison count padding",
        "tests/bench/test_arms.py::test_every_arm_has_a_row_for_every_round",
        "minitrain/bench/arms.py",
        "self.worker.batches.micro_batches(s)[0].global_targets for s",
        'self.worker.batches.micro_batches(s)[0].inputs["input_ids"].numel() for s',
    ),
    mutant(
        "ceiling_communicates",
        "the arm without communication trains with DDP",
        "tests/bench/test_arms.py::test_arms_of_two_world_sizes",
        "minitrain/bench/arms.py",
        'WITHOUT_SYNC = (("sync", PLAIN),)',
        'WITHOUT_SYNC = (("sync", "ddp"),)',
    ),
    mutant(
        "ddp_does_not_communicate",
        "the arm with DDP trains without communication",
        "tests/bench/test_arms.py::test_arms_communicate_or_do_not_as_their_names_say",
        "minitrain/bench/arms.py",
        "config = config_of(params, shards, arm.processes)",
        "params = params.with_train(sync=PLAIN)\n"
        "        config = config_of(params, shards, arm.processes)",
    ),
    mutant(
        "backward_alone_communicates",
        "the backward pass that is timed for computing alone communicates",
        "tests/train/test_loop.py::test_calibration_leaves_nothing_behind",
        "minitrain/train/observer.py",
        "with untouched[0], untouched[1], worker.sync.no_sync():",
        "with untouched[0], untouched[1]:",
    ),
    mutant(
        "mean_for_median_of_skew",
        "the skew of ranks is a mean where the median is promised",
        "tests/analysis/test_account.py::test_typical_step_and_skew_are_medians",
        "minitrain/analysis/account.py",
        "return _quantile((at.max() - at.min()) / 1e6, 0.50)",
        "return _mean((at.max() - at.min()) / 1e6)",
    ),
    mutant(
        "mean_for_median_of_ratios",
        "the ratio of two arms is a mean, not a median",
        "tests/analysis/test_comparison.py::test_ratio_is_a_median_within_its_interval",
        "minitrain/analysis/comparison.py",
        "ratio=math.exp(np.median(logs))",
        "ratio=math.exp(np.mean(logs))",
    ),
    mutant(
        "mean_for_median_of_steps",
        "the step time is a mean where the median is promised",
        "tests/analysis/test_account.py::test_typical_step_and_skew_are_medians",
        "minitrain/analysis/account.py",
        '"step_p50_ms": _quantile(steps["ms"], 0.50)',
        '"step_p50_ms": _mean(steps["ms"])',
    ),
    mutant(
        "interval_without_width",
        "both ends of the bootstrap interval are the median",
        "tests/analysis/test_comparison.py::test_ratio_is_a_median_within_its_interval",
        "minitrain/analysis/comparison.py",
        "axis=1), [0.05, 0.95])",
        "axis=1), [0.5, 0.5])",
    ),
]


def read_mutants(path: Path) -> list[Mutant]:
    """Read mutants of one edit each, separated by an empty line::

    # name: what it does
    file
    test that catches it
    - a line to be replaced; several are consecutive in the file
    + a line in its place, if any
    """
    found = []
    for text in path.read_text().split("\n\n"):
        title, file, test, *lines = text.strip("\n").split("\n")
        name, _, what = title.removeprefix("# ").partition(": ")
        old, new = (
            "\n".join(line[2:] for line in lines if line.startswith(sign))
            for sign in "-+"
        )
        found.append(mutant(name, what, test, file, old, new))
    return found


UNIT = read_mutants(Path(__file__).with_name("unit_mutants.txt"))
MUTANTS = [*DATA, *COMPUTING, *RECORDING, *STAGES, *MEASURING, *UNIT]
