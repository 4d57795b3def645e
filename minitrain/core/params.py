"""Schema of params.yaml: frozen, validated objects, one class per section."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from minitrain.core.errors import UserError
from minitrain.core.schema import (
    MAX_COUNT,
    Count,
    Distinct,
    PositiveFloat,
    Problem,
    Section,
    Seed,
    Some,
    load,
)

SOURCE_SUFFIXES = (".csv", ".txt", ".jsonl")
MIN_BLOCK_SIZE = 8
# more threads than this cost more in synchronization than they compute
MAX_THREADS = 256
# one day; years would overflow the integer types of gloo and the C library
MAX_TIMEOUT_S = 86_400
MAX_RESTARTS = 100
OptimizerName = Literal["adamw", "sgd"]
PrecisionName = Literal["float32", "bf16", "fp16"]


class Environment(Section):
    """Required software: ``torch`` is a release, such as 2.13.0."""

    torch: str


class Corpus(Section):
    """Source of samples: your own text, or a verb table (.csv), from which a built-in
    grammar generates ``num_sentences`` sentences.
    """

    source: str
    seed: Seed
    num_sentences: Count

    @model_validator(mode="after")
    def _known_suffix(self) -> Self:
        if "\0" in self.source or Path(self.source).suffix not in SOURCE_SUFFIXES:
            raise Problem("source", self.source, "a .csv, .txt or .jsonl file")
        return self


class Shard(Section):
    """Policy for long samples; see :func:`minitrain.data.text.fit_to_block`."""

    long_samples: Literal["split", "cut"]


class Model(Section):
    """Model sizes (``block_size`` in tokens) and ``factory``, the function that builds
    the model. ``file`` defines it and ``deps`` is code that it imports; both are paths.
    """

    file: str
    deps: str
    factory: str
    n_layer: Count
    n_head: Count
    n_embd: Count
    block_size: Annotated[int, Field(ge=MIN_BLOCK_SIZE, le=MAX_COUNT)]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.n_embd % self.n_head:
            allowed = f"a multiple of model.n_head = {self.n_head}"
            raise Problem("n_embd", self.n_embd, allowed)
        if not re.fullmatch(r"[\w.]+:\w+|[^\W\d]\w*", self.factory):
            allowed = "a name in model.file, or package.module:callable"
            raise Problem("factory", self.factory, allowed)
        return self


class Train(Section):
    """Options of a training run. Exactly one of ``num_steps`` and ``num_epochs`` is
    None. ``num_warmup_steps``: first steps, excluded from timings;
    ``global_batch_size``: samples per step of all ranks; ``sync``: strategy that
    synchronizes gradients; ``logical_shards``: number of parts of a batch, for
    invariant strategies; ``bucket_cap_mb``: size of DDP's buckets in MiB;
    ``hash_every``: number of steps between hashes of all tensors.
    """

    seed: Seed
    num_steps: Count | None
    num_epochs: Count | None
    num_warmup_steps: Count
    global_batch_size: Count
    grad_accumulation_steps: Count
    optimizer: OptimizerName
    fused_optimizer: bool
    learning_rate: PositiveFloat
    precision: PrecisionName
    sync: str
    logical_shards: Count
    bucket_cap_mb: PositiveFloat | None
    overlap: bool
    find_unused_parameters: bool
    threads_per_process: Annotated[int, Field(ge=1, le=MAX_THREADS)]
    hash_every: Count

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.num_steps is None) == (self.num_epochs is None):
            allowed = "a number if num_epochs is null"
            if self.num_steps is not None:
                both = "set either num_steps or num_epochs to null"
                allowed = f"null if num_epochs = {self.num_epochs}: {both}"
            raise Problem("num_steps", self.num_steps, allowed)
        if self.num_steps is not None and self.num_warmup_steps >= self.num_steps:
            raise Problem(*self._too_long(self.num_steps))
        return self

    def check_warmup(self, num_steps: int) -> None:
        """Raise UserError if the warm-up leaves none of ``num_steps`` steps to time."""
        if self.num_warmup_steps >= num_steps:
            raise UserError(f"params.yaml: train.{Problem(*self._too_long(num_steps))}")

    def _too_long(self, num_steps: int) -> tuple[str, int, str]:
        allowed = f"below the number of steps, {num_steps}"
        return "num_warmup_steps", self.num_warmup_steps, allowed


class Gloo(Section):
    """World sizes to train with gloo, on the CPU."""

    world_sizes: Some[Count]


class Nccl(Section):
    """World sizes to train with nccl, one GPU per rank; may be empty."""

    world_sizes: Distinct[Count]


class Baseline(Section):
    """Number of rounds and of steps per round for each arm of the baseline stage."""

    num_rounds: Annotated[int, Field(ge=5, le=MAX_COUNT)]
    steps_per_round: Count


class Equivalence(Section):
    """Absolute tolerance ``atol`` for differences of parameters from one process."""

    atol: PositiveFloat


class Checkpoint(Section):
    """Checkpoint interval in steps, and number of newest checkpoints to ``keep``."""

    every_steps: Count
    keep: Count


class Launch(Section):
    """Limits of the launcher: ``timeout_s`` is the longest wait for another rank in
    seconds, ``max_restarts`` the number of restarts after losing a rank.
    """

    timeout_s: Annotated[int, Field(ge=1, le=MAX_TIMEOUT_S)]
    max_restarts: Annotated[int, Field(ge=0, le=MAX_RESTARTS)]


class Params(Section):
    """All sections of params.yaml; see :func:`load_params`."""

    environment: Environment
    corpus: Corpus
    shard: Shard
    model: Model
    train: Train
    gloo: Gloo
    nccl: Nccl
    baseline: Baseline
    equivalence: Equivalence
    checkpoint: Checkpoint
    launch: Launch

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        size, steps = self.train.global_batch_size, self.train.grad_accumulation_steps
        for run, world_size in self.runs().items():
            if size % world_size:
                section = run.partition("-")[0]
                allowed = f"a multiple of {world_size}, from {section}.world_sizes"
                raise Problem("train.global_batch_size", size, allowed)
            if size // world_size % steps:
                allowed = (
                    f"a divisor of {size // world_size}, the samples of each of "
                    f"{world_size} processes in a step"
                )
                raise Problem("train.grad_accumulation_steps", steps, allowed)
        return self

    def with_train(self, **changes: Any) -> "Params":
        """Return a copy with ``changes`` to section ``train``, without validation."""
        return self.model_copy(update={"train": self.train.model_copy(update=changes)})

    def at(self, folder: Path) -> "Params":
        """Return a copy with the model paths resolved against ``folder``."""
        paths = {
            "file": str(folder / self.model.file),
            "deps": str(folder / self.model.deps),
        }
        return self.model_copy(update={"model": self.model.model_copy(update=paths)})

    def all_world_sizes(self) -> list[int]:
        """Return 1 and the world sizes of all backends, ascending."""
        return sorted({1, *self.runs().values()})

    def runs(self) -> dict[str, int]:
        """Return the world size of every configured run, by name, such as gloo-2."""
        return {
            f"{backend}-{size}": size
            for backend, section in (("gloo", self.gloo), ("nccl", self.nccl))
            for size in section.world_sizes
        }


def load_params(path: Path) -> Params:
    """Return the parameters in ``path``; UserError if it is missing or invalid."""
    require_root(path)
    return load(path, Params)


def require_root(path: Path = Path("params.yaml")) -> None:
    """Raise UserError if ``path`` does not exist in the current folder."""
    if not path.exists():
        where = path.absolute().parent
        raise UserError(f"{path}: not in {where}: run this in the project's root")
