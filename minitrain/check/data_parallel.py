"""``check_data_parallel``: the ladder (all checks of a run) of any model, in a test."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.analysis.rungs import FINE, CheckVerdict, Rung, not_run
from minitrain.analysis.verdicts import (
    VERDICTS,
    WITNESS_GRADIENTS,
    Basis,
    RunVerdict,
    verdict_of,
)
from minitrain.check.arguments import (
    as_config,
    by_argument,
    refuse_what_cannot_be,
)
from minitrain.check.trial import (
    alone,
    in_memory_of,
    run_alone,
    run_ranks,
    run_replay,
    run_twin,
)
from minitrain.compare.diagnosis import Values, cause_of, locate
from minitrain.compare.difference import UNKNOWN, Difference, What, Why
from minitrain.compare.run_tolerance import ATOL
from minitrain.core.errors import EvidenceError, RankError, UserError
from minitrain.core.params import OptimizerName, PrecisionName
from minitrain.core.progress import progress
from minitrain.proof.evidence import Evidence
from minitrain.proof.forward import collectives_of, forward_of
from minitrain.proof.ladder import ladder, own_rungs
from minitrain.proof.witness.examine import examine_batches
from minitrain.proof.witness.record import Record, Task
from minitrain.proof.words import printed, rests_on
from minitrain.sync.guarantees import DEFAULTS, Tuning
from minitrain.sync.strategy import Strategy
from minitrain.train.config import RunConfig
from minitrain.train.run import Inject

PROVEN: tuple[RunVerdict, ...] = ("proven",)
ANY_VERDICT = VERDICTS
# titles of the progress bars, in the order in which they appear
TITLES = ("processes", "replay", "witness", "one process")
BACKWARD = "does its backward pass sum what each rank contributes?"


@dataclass(frozen=True)
class Ladder:
    """Results of all checks of a run; ``print`` lists them.

    Args:
        rungs: Results by name of the check.
        divergence: First difference between the run and its replay in one process; None
            if there is none, or if bits are not compared.
        communicates: Names of the collectives that the forward pass calls.
    """

    rungs: dict[str, Rung]
    divergence: Difference | None
    communicates: Sequence[str] = ()

    @property
    def verdict(self) -> RunVerdict:
        """Verdict on the run: ``proven`` (bit-identical to its replay, and confirmed by
        a witness that shares no code with it), ``proven in eval mode`` (since
        training draws random numbers other than dropout), ``replay only`` (no witness),
        ``undecided`` (bits are not compared) or ``breach`` (a check failed).
        """
        return verdict_of(self.rungs).verdict

    @property
    def rests_on(self) -> str:
        """The reason for the verdict, in a sentence."""
        ruling = verdict_of(self.rungs)
        reasons = rests_on(ruling, self.rungs)
        if not self.communicates:
            return reasons
        if ruling.basis is Basis.FAILED_CHECK:
            return f"{reasons}; {_communicates(self.communicates)}; {BACKWARD}"
        witness, unlike = self._has_witness(), self._unlike_one_process()
        seen = [
            "a witness agrees" if witness else "no witness supports it",
            f"one process: {unlike[0]}" if unlike else "one process agrees",
        ]
        return "; ".join([_communicates(self.communicates), *seen])

    @property
    def holds(self) -> bool:
        """True if the verdict is ``proven``. A forward pass that calls collectives has
        no replay; then both the witness and one process with whole batches must agree.
        """
        if not self.communicates:
            return self.verdict == "proven"
        compared = self._has_witness() and not self._unlike_one_process()
        return self.verdict == "undecided" and compared

    def _has_witness(self) -> bool:
        names = self.rungs.keys() & {*WITNESS_GRADIENTS}
        return any(self.rungs[name].verdict in FINE for name in names)

    def _unlike_one_process(self) -> list[str]:
        rungs = (self.rungs[name] for name in ("one_process_gradients", "one_process"))
        return [rung.detail for rung in rungs if rung.verdict not in FINE]

    @property
    def breaches(self) -> list[str]:
        """Names of the checks that failed; empty if none did."""
        return [
            name for name, r in self.rungs.items() if r.verdict is CheckVerdict.BREACH
        ]

    def __str__(self) -> str:
        lines = printed(self.rungs)
        lines.append(f"{self.verdict}: {self.rests_on}")
        if self.divergence is not None:
            lines.append(f"first difference: {self.divergence}")
        return "\n".join(lines)


def check_data_parallel(
    factory: Callable[[], nn.Module],
    batches: Iterable[Any],
    *,
    world_size: int = 2,
    loss: Callable[[nn.Module, Any], Tensor] | None = None,
    count: Callable[[Any], Any] | None = None,
    sync: str | type[Strategy] = "ddp",
    tuning: Tuning = DEFAULTS,
    grad_accumulation_steps: int = 1,
    precision: PrecisionName = "float32",
    optimizer: OptimizerName = "adamw",
    learning_rate: float = 1e-3,
    steps: int | None = None,
    seed: int = 0,
    timeout_s: float = 300,
    atol: float = ATOL,
    accept: Collection[RunVerdict] = PROVEN,
    show: bool = False,
) -> Ladder:
    """Train a model with several processes and check the result: by a replay in one
    process, by an independent witness, and by one process with whole batches.

    Args:
        factory: Function that returns a new model at each call, in every process.
        batches: Global batches of B samples, at least one per process: tensors (B, ...)
            or lists, tuples, mappings of them. A DataLoader is read once, to ``steps``.
        world_size: Number of processes, at least 2.
        loss: ``loss(model, batch)``, the 0-dim mean over the targets of a batch.
            Default: ``model(**batch).loss``, as for Hugging Face's causal models.
        count: ``count(batch)``, the number of targets. Default: labels other than -100
            (shape (B, T): without the first of each row), or samples without labels.
        sync: Name or class of a strategy; checks beyond its promises are skipped.
        tuning: Settings of the strategy, such as ``minitrain.sync.Defaults()``.
        grad_accumulation_steps: Micro-batches of each rank in a step.
        precision: ``float32``, ``bf16`` or ``fp16``.
        optimizer: ``adamw`` or ``sgd``.
        learning_rate: Learning rate of the optimizer.
        steps: At least 2; batches repeat. Default: one for each batch, at least 2.
        seed: Seed of rank 0; rank r has ``seed + r``.
        timeout_s: Limit in seconds for each start of the processes.
        atol: Allowed difference of a final parameter from one process, in float32 with
            AdamW at a rate of 3e-4; it grows with the rate. SGD and float64 have other
            limits.
        accept: Verdicts that raise no error (see ``Ladder.verdict``).
        show: Report progress on stderr.

    Returns:
        The results of all checks.

    Raises:
        EvidenceError: The verdict is not in ``accept``; the message has all results and
            the first difference. Not raised for a forward pass that calls collectives,
            if ``Ladder.holds``.
        UserError: An argument is invalid, or the model or the loss fails.
        RankError: A process fails, or takes more than ``timeout_s``.
    """
    given = {**locals()}
    __tracebackhide__ = True
    return _checked(**given)


def _checked(**given: Any) -> Ladder:
    __tracebackhide__ = True
    try:
        config, world_size = as_config(**given), given["world_size"]
        refuse_what_cannot_be(config, world_size)
        options = {name: given[name] for name in ("atol", "timeout_s", "show")}
        found = examine(config, world_size, **options)
    except (UserError, RankError) as error:
        raise by_argument(error) from None
    if found.verdict in given["accept"] or (found.communicates and found.holds):
        return found
    line = f"{found.verdict}: {found.rests_on}"
    if found.verdict != "breach":
        line += f" (accept=('proven', '{found.verdict}') lets this pass)"
    raise EvidenceError(f"{line}\n{found}")


def examine(
    config: RunConfig,
    world_size: int,
    inject: Inject | None = None,
    *,
    run: Evidence | None = None,
    one: Evidence | None = None,
    atol: float = ATOL,
    timeout_s: float = 300,
    show: bool = False,
) -> Ladder:
    """Check the run ``config`` and return the results, also if a check fails.

    ``inject`` is called with the worker of each rank, to add a fault. ``run`` (all
    ranks) and ``one`` (one process with whole batches) are evidence on earlier runs; by
    default they are trained here. For others see :func:`check_data_parallel`. Raises
    UserError for a loss that is not finite, RankError if a process fails.
    """
    ranks, replay, judge, alone = TITLES if show else [""] * len(TITLES)
    run = run or run_ranks(config, world_size, inject, timeout_s=timeout_s, show=ranks)
    communicates = collectives_of(run.rows)
    again = None
    if not communicates:
        again = run_replay(config, run.rows, world_size, show=replay)
    own = own_rungs(config, run, again, witness(config, run, world_size, judge))
    if communicates:
        own["replay"] = not_run(_communicates(communicates))
    beside = one or _beside(config, run, world_size, alone)
    twin = cache(partial(run_twin, config, show=alone))
    rungs = ladder(own, config, run, beside, twin, atol)
    # in memory, samples are identified by content, and batches may repeat one
    del rungs["one_process_data"]

    def explain(step: int, what: What, ranks: list[int]) -> Why:
        if config.precision == "fp16" or config.num_shards(world_size) != world_size:
            # known causes assume one gradient per rank, without a loss scale
            return UNKNOWN
        try:
            spoilt = run_ranks(config, world_size, inject, step, timeout_s)
        except (RankError, UserError):
            # a breach without its cause is still a breach
            return UNKNOWN
        right = run_replay(config, run.rows, world_size, keep=step).values[0]
        shares = _shares(config, step, world_size)
        return cause_of(what, ranks, Values(spoilt.values, right, shares))

    first = None
    if again is not None and "replay" in config.sync.guarantees.promises:
        first = locate(run.rows, again.rows, explain)
    return Ladder(rungs, first, communicates)


def _communicates(collectives: Sequence[str]) -> str:
    names = ", ".join(collectives)
    return f"the forward pass communicates ({names}), so ranks cannot be replayed"


def _beside(
    config: RunConfig, run: Evidence, world_size: int, show: str
) -> Evidence | str:
    # train one process, or return the reason why it would not be comparable
    parts = config.num_shards(world_size) * config.grad_accumulation_steps
    if collectives_of(run.rows) and parts != world_size:
        return "each collective combines one micro-batch of each rank, not the batch"
    why = forward_of(run.rows, config).why
    if why and "loss" not in config.sync.guarantees.promises:
        return why
    return run_alone(config, show=show)


def _shares(config: RunConfig, step: int, world_size: int) -> list[float]:
    counts = [0] * world_size
    for part in config.batches(range(world_size), world_size).micro_batches(step):
        counts[part.shard] += part.num_targets
    return [count / sum(counts) for count in counts]


def witness(
    config: RunConfig, run: Evidence, world_size: int, show: str = ""
) -> dict[str, Any]:
    """Return results of the witness (checks that share no code with the run) by name.
    It receives only the user's model, loss and batches, and what ``run`` recorded.
    ``show``: the title of a progress bar over the losses that it computes, "" for none.
    """
    data, guarantees = in_memory_of(config), config.sync.guarantees
    losses = progress(count(), show, show=bool(show))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        next(losses)
        return data.loss(model, batch)

    task = Task(
        build=lambda: config.start_model(0),
        loss=loss,
        count=data.count,
        world_size=world_size,
        num_steps=config.steps,
        hash_every=config.hash_every,
        optimizer=config.optimizer,
        learning_rate=config.learning_rate,
        precision=config.precision,
        wire=getattr(torch, guarantees.wire) if guarantees.wire else None,
        whole=bool(collectives_of(run.rows)),
    )
    record = Record(run.rows, run.losses, run.sampled, run.state)
    # it promises no bits, so it may use all threads that this process has
    with alone(threads=None):
        return examine_batches(task, data.batches, record, exact=guarantees.are_exact)
