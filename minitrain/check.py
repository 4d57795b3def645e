"""``check_data_parallel``: the ladder for any model, from one's own test."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn

from minitrain.batches import IGNORE_INDEX, causal_lm_loss
from minitrain.equivalence import (
    Rung,
    bits_rung,
    data_rung,
    early_state_rung,
    final_state_rung,
    gradients_rung,
    hashes_rung,
    not_run,
    own_to_each_rank,
    ranks_rung,
    reduced_once_rung,
    trained_rung,
)
from minitrain.errors import EvidenceError, UserError
from minitrain.locator import Divergence, Values, What, cause_of, locate
from minitrain.sensitivity import nudge
from minitrain.sync import GradientSync
from minitrain.sync.stock import StockDDP
from minitrain.trial import (
    OPTIMIZERS,
    Outcome,
    Plant,
    Trial,
    cut,
    run_one_process,
    run_ranks,
    run_replay,
    tensors_of,
)

ATOL = 1e-5
STRATEGIES = {"ddp": partial(StockDDP, timed=True)}


@dataclass(frozen=True)
class Ladder:
    """Every rung by name, and where the first difference from the replay is."""

    rungs: dict[str, Rung]
    divergence: Divergence | None

    @property
    def well(self) -> bool:
        """No rung is breached."""
        return not self.breaches

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
    sync: str | Callable[[nn.Module], GradientSync] = "ddp",
    optimizer: Literal["adamw", "sgd"] = "adamw",
    learning_rate: float = 1e-3,
    steps: int | None = None,
    seed: int = 0,
    timeout_s: float = 300,
) -> Ladder:
    """Train ``factory()`` with ``world_size`` processes and prove that it is right.

    ``batches`` are global batches: tensors, or lists, tuples and mappings of tensors,
    cut along their first dimension (rank r takes samples r, r + W, ...). ``loss(model,
    batch)`` gives the mean over the targets of a batch; without one, ``model(**batch)``
    must return an object with ``.loss``, as Hugging Face's causal models do. ``count``
    says how many targets that mean is over: by default the labels that are not -100
    (the first of a row, which nothing predicts, left out), else the samples. ``steps``
    is one for each batch unless told otherwise.

    Returns the ladder. Raises EvidenceError with the ladder and the first difference
    where a rung is breached, UserError for arguments that cannot be.
    """
    trial = Trial(
        factory=factory,
        batches=batches,
        loss=loss or causal_lm_loss,
        count=count or count_targets,
        sync=_strategy(sync),
        optimizer=optimizer,
        learning_rate=learning_rate,
        steps=len(batches) if steps is None else steps,
        seed=seed,
    )
    _refuse_what_cannot_be(trial, world_size)
    ladder = examine(trial, world_size, timeout_s=timeout_s)
    if not ladder.well:
        raise EvidenceError(f"{', '.join(ladder.breaches)} breached\n{ladder}")
    return ladder


def examine(
    trial: Trial,
    world_size: int,
    plant: Plant | None = None,
    timeout_s: float = 300,
    one: Outcome | None = None,
) -> Ladder:
    """The ladder of ``trial``, with a fault planted in every rank or without.

    ``one`` is the one-process run, where somebody has made it already.
    """
    run = run_ranks(trial, world_size, plant, timeout_s=timeout_s)
    replay = run_replay(trial, run, world_size)
    one = one or run_one_process(trial)
    rungs = {
        "trained": trained_rung(run.rows),
        "ranks": ranks_rung(run.states),
        "data": data_rung(run.rows, replay.rows),
        "reduced_once": reduced_once_rung(run.rows),
        "replay_gradients": hashes_rung(run.rows, replay.rows, "gradients", world_size),
        "replay_parameters": hashes_rung(
            run.rows, replay.rows, "parameters", world_size
        ),
        "replay_buffers": hashes_rung(run.rows, replay.rows, "buffers", world_size),
        "replay": bits_rung(run.states[0], replay.states[0]),
        **_against_one_process(trial, run, one),
    }

    def values(step: int) -> Values:
        again = run_ranks(trial, world_size, plant, keep=step, timeout_s=timeout_s)
        right = run_replay(trial, run, world_size, keep=step).values[0]
        batch = trial.batches[step % len(trial.batches)]
        counts = [trial.count(cut(batch, r, world_size)) for r in range(world_size)]
        shares = [count / sum(counts) for count in counts]
        return Values(again.values, right, shares)

    def explain(step: int, what: What, ranks: list[int]) -> str:
        return cause_of(what, ranks, values(step))

    return Ladder(rungs, locate(run.rows, replay.rows, explain))


def _against_one_process(trial: Trial, run: Outcome, one: Outcome) -> dict[str, Rung]:
    names = ("one_process_gradients", "one_process_early", "one_process")
    why = own_to_each_rank(run.rows)
    if why is not None:
        return dict.fromkeys(names, not_run(why))
    kept, kept_by_one = run.results[0].kept, one.results[0].kept

    def nudged() -> Mapping[str, Tensor]:
        return run_one_process(trial, nudge).states[0]

    rungs = (
        gradients_rung(kept["gradients"], kept_by_one["gradients"]),
        early_state_rung(kept["early"], kept_by_one["early"], trial, ATOL),
        final_state_rung(run.states[0], one.states[0], trial, ATOL, nudged),
    )
    return dict(zip(names, rungs, strict=True))


def count_targets(batch: Any) -> int:
    """Labels that are not -100, the first of each row left out; else the samples."""
    if isinstance(batch, Mapping) and "labels" in batch:
        labels: Tensor = batch["labels"]
        return int((labels[:, 1:] != IGNORE_INDEX).sum())
    return len(tensors_of(batch)[0])


def _strategy(
    sync: str | Callable[[nn.Module], GradientSync],
) -> Callable[[nn.Module], GradientSync]:
    if callable(sync):
        return sync
    if sync not in STRATEGIES:
        allowed = ", ".join(STRATEGIES)
        raise UserError(f"sync = {sync!r}: must be one of {allowed}, or a callable")
    return STRATEGIES[sync]


def _refuse_what_cannot_be(trial: Trial, world_size: int) -> None:
    if world_size < 2:
        raise UserError(f"world_size = {world_size}: must be at least 2")
    if trial.optimizer not in OPTIMIZERS:
        allowed = ", ".join(OPTIMIZERS)
        raise UserError(f"optimizer = {trial.optimizer!r}: must be one of {allowed}")
    if trial.steps < 2:
        raise UserError(f"steps = {trial.steps}: must be at least 2")
    for index, batch in enumerate(trial.batches):
        lengths = {len(t) if t.dim() else 0 for t in tensors_of(batch)}
        if len(lengths) != 1:
            found = ", ".join(map(str, sorted(lengths))) or "no tensor"
            raise UserError(
                f"batches[{index}]: all tensors must have one length, found {found}"
            )
        if min(lengths) < world_size:
            raise UserError(
                f"batches[{index}]: {min(lengths)} samples cannot be cut for "
                f"{world_size} processes"
            )
