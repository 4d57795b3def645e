"""params.yaml as frozen, validated objects: one class per section.

Unknown keys are refused. A mistake raises :class:`~minitrain.errors.UserError` with
one line that names the file, the key, the value and what is allowed.
"""

import difflib
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.reader import ReaderError

from minitrain.errors import UserError

Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]

SOURCE_SUFFIXES = (".csv", ".txt", ".jsonl")
MIN_BLOCK_SIZE = 8
MAX_THREADS = 1024


class Section(BaseModel):
    """A section of params.yaml: frozen, no unknown keys, no silent conversions."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, protected_namespaces=()
    )


class Environment(Section):
    torch: str


class Corpus(Section):
    source: str
    seed: Seed
    num_sentences: Count

    @model_validator(mode="after")
    def _known_suffix(self) -> Self:
        if "\0" in self.source or Path(self.source).suffix not in SOURCE_SUFFIXES:
            raise _problem("source", self.source, "a .csv, .txt or .jsonl file")
        return self


class Shard(Section):
    long_samples: Literal["split", "cut"]


class Model(Section):
    file: str
    factory: str
    n_layer: Count
    n_head: Count
    n_embd: Count
    block_size: Annotated[int, Field(ge=MIN_BLOCK_SIZE)]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.n_embd % self.n_head:
            allowed = f"a multiple of model.n_head = {self.n_head}"
            raise _problem("n_embd", self.n_embd, allowed)
        if not re.fullmatch(r"[\w.]+:\w+|[^\W\d]\w*", self.factory):
            allowed = "a name in model.file, or package.module:callable"
            raise _problem("factory", self.factory, allowed)
        return self


class Train(Section):
    seed: Seed
    num_steps: Count | None
    num_epochs: Count | None
    num_warmup_steps: Count
    global_batch_size: Count
    grad_accumulation_steps: Count
    optimizer: Literal["adamw", "sgd"]
    learning_rate: PositiveFloat
    precision: Literal["float32", "bf16", "fp16"]
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
            allowed = f"null, or else num_epochs = {self.num_epochs} must be"
            raise _problem("num_steps", self.num_steps, allowed)
        if self.num_steps is not None:
            self._check_warmup(self.num_steps)
        return self

    def check_warmup(self, num_steps: int) -> None:
        """Refuse (UserError) a warm-up that leaves none of ``num_steps`` to time."""
        try:
            self._check_warmup(num_steps)
        except _Problem as problem:
            raise UserError(f"params.yaml: train.{problem}") from None

    def _check_warmup(self, num_steps: int) -> None:
        if self.num_warmup_steps >= num_steps:
            allowed = f"below the number of steps, {num_steps}"
            raise _problem("num_warmup_steps", self.num_warmup_steps, allowed)


class Gloo(Section):
    world_sizes: Annotated[list[Count], Field(min_length=1)]


class Nccl(Section):
    world_sizes: list[Count]


class Baseline(Section):
    num_rounds: Annotated[int, Field(ge=5)]
    steps_per_round: Count


class Equivalence(Section):
    atol: PositiveFloat


class Launch(Section):
    timeout_s: Count


class Params(Section):
    """All of params.yaml."""

    environment: Environment
    corpus: Corpus
    shard: Shard
    model: Model
    train: Train
    gloo: Gloo
    nccl: Nccl
    baseline: Baseline
    equivalence: Equivalence
    launch: Launch

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name, sizes in self._world_sizes_by_section().items():
            if len(set(sizes)) < len(sizes):
                key = f"{name}.world_sizes"
                raise _problem(key, sizes, "a list that holds each number once")
            for world_size in sizes:
                self._check_batch(name, world_size)
        return self

    def with_train(self, **changes: Any) -> "Params":
        """The same but for ``changes`` to ``train``, which are not validated."""
        return self.model_copy(update={"train": self.train.model_copy(update=changes)})

    def at(self, folder: Path) -> "Params":
        """The same seen from elsewhere: paths begin with ``folder``."""
        model = self.model.model_copy(update={"file": str(folder / self.model.file)})
        return self.model_copy(update={"model": model})

    def _check_batch(self, section: str, world_size: int) -> None:
        size, parts = self.train.global_batch_size, self.train.grad_accumulation_steps
        if size % world_size:
            allowed = f"a multiple of {world_size}, from {section}.world_sizes"
            raise _problem("train.global_batch_size", size, allowed)
        if size // world_size % parts:
            allowed = (
                f"a divisor of {size // world_size}, the samples of each of "
                f"{world_size} processes in a step"
            )
            raise _problem("train.grad_accumulation_steps", parts, allowed)

    def _world_sizes_by_section(self) -> dict[str, list[int]]:
        return {"gloo": self.gloo.world_sizes, "nccl": self.nccl.world_sizes}

    def all_world_sizes(self) -> list[int]:
        """1, the measure of all others, and those of every backend, ascending."""
        return sorted({1, *self.runs().values()})

    def runs(self) -> dict[str, int]:
        """Every training run that is asked for: name -> world size."""
        return {
            f"{backend}-{size}": size
            for backend, sizes in self._world_sizes_by_section().items()
            for size in sizes
        }


class _Problem(UserError, ValueError):
    """A UserError that pydantic carries as a validation error of a section."""

    def __init__(self, key: str, value: object, allowed: str) -> None:
        self.key = key
        super().__init__(f"{key} = {_shown(value)}: must be {allowed}")


def _problem(key: str, value: object, allowed: str) -> _Problem:
    return _Problem(key, value, allowed)


def load_params(path: Path) -> Params:
    """Read and validate ``path``.

    Raises UserError (one line: file, key, value, what is allowed) when the file is
    missing, is not YAML, or does not fit the schema.
    """
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        document = YAML(typ="safe", pure=True).load(text)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}") from None
    except MarkedYAMLError as error:
        mark = error.problem_mark
        line = f":{mark.line + 1}" if mark else ""
        raise UserError(f"{path}{line}: not valid YAML: {error.problem}") from None
    except ReaderError as error:
        number = text.count("\n", 0, error.position) + 1
        problem = f"character U+{error.character:04X}"
        raise UserError(f"{path}:{number}: not valid YAML: {problem}") from None
    except (ValueError, LookupError, RecursionError) as error:
        # from ruamel's constructors: a date in month 13, !!bool maybe, 5000 digits
        raise UserError(f"{path}: a value cannot be read: {error}") from None
    if not isinstance(document, dict):
        raise UserError(f"{path}: must hold sections, each a mapping of keys")
    try:
        return Params.model_validate(document)
    except ValidationError as error:
        raise UserError(_first_line(path, error)) from None


def _first_line(path: Path, error: ValidationError) -> str:
    details = error.errors()
    # an unknown key is usually the cause of the missing one beside it
    first = min(details, key=lambda detail: detail["type"] != "extra_forbidden")
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    return f"{path}: {_one_error(first)}{more}"


def _one_error(detail: ErrorDetails) -> str:
    parts = [str(part) for part in detail["loc"]]
    key = ".".join(parts)
    if detail["type"] == "extra_forbidden":
        return f"{key}: unknown key{_suggestion(parts)}"
    if detail["type"] == "missing":
        return f"{key}: is missing"
    problem = detail.get("ctx", {}).get("error")
    if isinstance(problem, _Problem):
        return f"{key}.{problem}" if key else str(problem)
    message = re.sub("^(Input|List) should", "must", detail["msg"])
    return f"{key} = {_shown(detail['input'])}: {message}"


def _suggestion(parts: list[str]) -> str:
    section: Any = Params
    for part in parts[:-1]:
        section = section.model_fields[part].annotation
    close = difflib.get_close_matches(parts[-1], section.model_fields, n=1)
    allowed = ", ".join(section.model_fields)
    return f" (did you mean {close[0]}?)" if close else f"; allowed: {allowed}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
