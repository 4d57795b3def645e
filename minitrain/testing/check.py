"""``check_data_parallel``: the ladder for any model, from one's own test."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from torch import Tensor, nn

from minitrain.analysis.verdicts import VERDICTS, Verdict, as_dicts, verdict_of
from minitrain.core.errors import EvidenceError, UserError
from minitrain.data.batches import causal_lm_loss
from minitrain.data.cut import count_targets, cut, tensors_of
from minitrain.diff.diagnosis import UNKNOWN, Divergence, Values, What, cause_of, locate
from minitrain.proof.bits import Rung
from minitrain.proof.ladder import ladder
from minitrain.proof.promises import is_exact, not_comparable, not_promised
from minitrain.proof.single_process import nudge
from minitrain.proof.tolerances import Compared, one_process_rungs
from minitrain.proof.witness.examine import examine_batches
from minitrain.proof.witness.record import Record, Task
from minitrain.sync.catalog import find_strategy
from minitrain.sync.strategy import DEFAULTS, Strategy, Tuning, trained
from minitrain.testing.trial import (
    Outcome,
    Plant,
    Trial,
    compared,
    one_thread,
    ran,
    run_one_process,
    run_ranks,
    run_replay,
)
from minitrain.train.loop import OPTIMIZERS, mean_losses
from minitrain.train.precision import PRECISIONS, Name
from minitrain.train.rng import untouched_random_state

ATOL = 1e-5
PROVEN: tuple[Verdict, ...] = ("proven",)


@dataclass(frozen=True)
class Ladder:
    """Every rung by name, and where the first difference from the replay is."""

    rungs: dict[str, Rung]
    divergence: Divergence | None

    @property
    def verdict(self) -> Verdict:
        """``proven`` (the bits of a replay, and a witness that shares no code with the
        run), ``replay only``, ``undecided`` (what strategies come to that promise no
        bits) or ``breach``.
        """
        return verdict_of(as_dicts(self.rungs))[0]

    @property
    def rests_on(self) -> str:
        """What the verdict rests on, in a sentence."""
        return verdict_of(as_dicts(self.rungs))[1]

    @property
    def breaches(self) -> list[str]:
        """The names of the rungs that are."""
        return [name for name, r in self.rungs.items() if r.verdict == "breach"]

    def __str__(self) -> str:
        width = max(map(len, self.rungs))
        lines = [
            f"{name:<{width}}  {rung.verdict:<16}  {rung.detail}".rstrip()
            for name, rung in self.rungs.items()
        ]
        lines.append(f"{self.verdict}: {self.rests_on}")
        if self.divergence is not None:
            lines.append(f"first difference: {self.divergence}")
        return "\n".join(lines)


def check_data_parallel(
    factory: Callable[[], nn.Module],
    batches: Sequence[Any],
    *,
    world_size: int = 2,
    loss: Callable[[nn.Module, Any], Tensor] | None = None,
    count: Callable[[Any], int] | None = None,
    sync: str | type[Strategy] = "ddp",
    tuning: Tuning = DEFAULTS,
    grad_accumulation_steps: int = 1,
    precision: Name = "float32",
    optimizer: Literal["adamw", "sgd"] = "adamw",
    learning_rate: float = 1e-3,
    steps: int | None = None,
    seed: int = 0,
    timeout_s: float = 300,
    accept: Collection[Verdict] = PROVEN,
) -> Ladder:
    """Train ``factory()`` with ``world_size`` processes and prove that it is right.

    ``batches`` are global batches: tensors, or lists, tuples and mappings of tensors,
    cut along their first dimension. ``loss(model, batch)`` gives the mean over the
    targets of a batch (default: ``model(**batch).loss``, as of Hugging Face's causal
    models), ``count`` how many these are (default: :func:`count_targets`). ``sync`` is
    a name that ``train.sync`` has in params.yaml, or a class, and held to what it
    promises. ``steps`` is one for each batch unless told otherwise.

    Returns the ladder. Raises EvidenceError with the ladder and the first difference
    unless you ``accept`` its verdict, UserError for arguments that cannot be.
    """
    trial = Trial(
        factory=factory,
        batches=batches,
        loss=loss or causal_lm_loss,
        count=_number(count or count_targets),
        sync=find_strategy(sync) if isinstance(sync, str) else sync,
        optimizer=optimizer,
        learning_rate=learning_rate,
        steps=len(batches) if steps is None else steps,
        seed=seed,
        tuning=tuning,
        grad_accumulation_steps=grad_accumulation_steps,
        precision=precision,
    )
    _refuse_what_cannot_be(trial, world_size)
    _refuse_unknown(accept)
    found = examine(trial, world_size, timeout_s=timeout_s)
    _refuse_verdict(found, accept)
    return found


def examine(
    trial: Trial,
    world_size: int,
    plant: Plant | None = None,
    timeout_s: float = 300,
    run: Outcome | None = None,
    one: Outcome | None = None,
) -> Ladder:
    """The ladder of ``trial``, with a fault planted in every rank or without.

    ``run`` is that of the ranks, ``one`` the one-process run, where somebody has made
    it already.
    """
    run = run or run_ranks(trial, world_size, plant, timeout_s=timeout_s)
    replay = run_replay(trial, run, world_size)
    one = one or run_one_process(trial)
    shards = trial.num_shards(world_size)
    testimony = witness(trial, run, world_size)
    both = ran(run), ran(replay)
    rungs = ladder(*both, trial.sync, shards, trial.precision, testimony)
    rungs |= _against_one_process(trial, run, one)
    rungs |= not_comparable(rungs)
    rungs |= not_promised(rungs, trial.sync, trial.precision)

    def values(step: int) -> Values:
        again = run_ranks(trial, world_size, plant, keep=step, timeout_s=timeout_s)
        right = run_replay(trial, run, world_size, keep=step).values[0]
        batch = trial.batches[step % len(trial.batches)]
        counts = [trial.count(cut(batch, r, world_size)) for r in range(world_size)]
        shares = [count / sum(counts) for count in counts]
        return Values(again.values, right, shares)

    def explain(step: int, what: What, ranks: list[int]) -> str:
        if trial.precision == "fp16" or trial.num_shards(world_size) != world_size:
            # the patterns are those of one gradient a rank, on the scale of the loss
            return UNKNOWN
        return cause_of(what, ranks, values(step))

    promised = "replay" in trial.sync.promises
    return Ladder(rungs, locate(run.rows, replay.rows, explain) if promised else None)


def witness(trial: Trial, run: Outcome, world_size: int) -> dict[str, Any]:
    """The rungs of the witness, which is given nothing but what the caller gave."""
    task = Task(
        build=lambda: trial.start(0),
        loss=trial.loss,
        count=trial.count,
        world_size=world_size,
        num_steps=trial.steps,
        hash_every=trial.hash_every,
        optimizer=trial.optimizer,
        learning_rate=trial.learning_rate,
        precision=trial.precision,
        wire=trial.sync.wire,
    )
    sampled = run.results[0].kept["sampled"]
    record = Record(run.rows, mean_losses(run.results), sampled, run.states[0])
    with one_thread(), untouched_random_state():
        exact = is_exact(trial.sync)
        return examine_batches(task, trial.batches, record, exact=exact)


def _against_one_process(trial: Trial, run: Outcome, one: Outcome) -> dict[str, Rung]:
    @cache
    def twin(most_steps: int | None) -> Compared:
        return compared(run_one_process(trial, nudge, most_steps))

    rungs = one_process_rungs(compared(run), compared(one), trial, ATOL, twin)
    del rungs["one_process_data"]
    return rungs


def _refuse_what_cannot_be(trial: Trial, world_size: int) -> None:
    if world_size < 2:
        raise UserError(f"world_size = {world_size}: must be at least 2")
    if trial.optimizer not in OPTIMIZERS:
        allowed = ", ".join(OPTIMIZERS)
        raise UserError(f"optimizer = {trial.optimizer!r}: must be one of {allowed}")
    if trial.precision not in PRECISIONS:
        allowed = ", ".join(PRECISIONS)
        raise UserError(f"precision = {trial.precision!r}: must be one of {allowed}")
    for name, value in {
        "grad_accumulation_steps": trial.grad_accumulation_steps,
        "logical_shards": trial.tuning.logical_shards,
    }.items():
        if value < 1:
            raise UserError(f"{name} = {value}: must be at least 1")
    trial.sync.require(trial.tuning, world_size, trial.precision)
    if trial.steps < 2:
        raise UserError(f"steps = {trial.steps}: must be at least 2")
    for index, batch in enumerate(trial.batches):
        if trial.loss is causal_lm_loss and not isinstance(batch, Mapping):
            raise UserError(
                f"loss: is not given, and batches[{index}] is a "
                f"{type(batch).__name__}: must be a mapping for model(**batch).loss"
            )
        lengths = {len(t) if t.dim() else 0 for t in tensors_of(batch)}
        if len(lengths) != 1:
            found = ", ".join(map(str, sorted(lengths))) or "no tensor"
            raise UserError(
                f"batches[{index}]: all tensors must have one length, found {found}"
            )
        parts = trial.num_shards(world_size) * trial.grad_accumulation_steps
        if min(lengths) < parts:
            raise UserError(
                f"batches[{index}]: {min(lengths)} samples cannot be cut into {parts} "
                "parts (processes or logical shards, times grad_accumulation_steps)"
            )
    _refuse_parts_without_targets(trial, world_size)
    if not trial.tuning.find_unused_parameters:
        _refuse_unused_parameters(trial, world_size)


def _number(count: Callable[[Any], Any]) -> Callable[[Any], int]:
    # many a count is a tensor
    return lambda batch: int(count(batch))


def _refuse_verdict(found: Ladder, accept: Collection[Verdict]) -> None:
    if found.verdict in accept:
        return
    line = f"{found.verdict}: {found.rests_on}"
    if found.verdict != "breach":
        line += f" (accept=('proven', '{found.verdict}') lets this pass)"
    raise EvidenceError(f"{line}\n{found}")


def _refuse_unknown(accept: Collection[str]) -> None:
    wrong = isinstance(accept, str) or not isinstance(accept, Collection)
    if wrong or not accept or not {*accept} <= {*VERDICTS}:
        allowed = ", ".join(VERDICTS)
        raise UserError(f"accept = {accept!r}: must hold some of {allowed}")


def _refuse_parts_without_targets(trial: Trial, world_size: int) -> None:
    """The mean over no target is no number, and no weight makes it one."""
    shards = trial.num_shards(world_size)
    every = trial.cut(range(shards), shards)
    for step in range(min(trial.steps, len(trial.batches))):
        counted = [part.num_targets for part in every.parts(step)]
        whole = trial.count(trial.batches[step])
        if sum(counted) != whole:
            raise UserError(
                f"count(batches[{step}]) = {whole}: must be the sum of its parts' "
                f"counts, {' + '.join(map(str, counted))}"
            )
        for part in every.parts(step):
            if part.num_targets == 0:
                raise UserError(
                    f"batches[{step}]: the part of shard {part.shard} (of {shards}) "
                    "has no target"
                )


def _refuse_unused_parameters(trial: Trial, world_size: int) -> None:
    """DDP would let step 0 pass and fail at step 1."""
    with untouched_random_state():
        model = trial.start(0)
        shards = trial.num_shards(world_size)
        trial.loss(model, cut(trial.batches[0], 0, shards)).backward()
    unused = [name for name, p in trained(model).items() if p.grad is None]
    if unused:
        raise UserError(
            f"model: parameter {unused[0]} ({len(unused)} in all) gets no gradient; "
            "use it in the loss, set requires_grad to False, or "
            "find_unused_parameters to True"
        )
