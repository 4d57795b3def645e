"""What the params.yaml of each study may say: one class per study."""

from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import Field, create_model, model_validator

from minitrain.schema import Count, PositiveFloat, Problem, Section, Seed, load

# one process synchronises with nobody
WorldSize = Annotated[int, Field(ge=2)]
# below, the interval of a comparison says little
Rounds = Annotated[int, Field(ge=15)]
Some = Field(min_length=1)


class _Turns(Section):
    """Arms that take turns."""

    world_size: WorldSize
    num_rounds: Rounds
    steps_per_round: Count


class Buckets(_Turns):
    global_batch_size: Count
    bucket_caps_mb: Annotated[list[PositiveFloat | None], Some]

    @model_validator(mode="after")
    def _has_default(self) -> Self:
        if None not in self.bucket_caps_mb:
            allowed = "a list with null, torch's default, in it"
            raise Problem("bucket_caps_mb", self.bucket_caps_mb, allowed)
        return self


class Collectives(Section):
    world_sizes: Annotated[list[WorldSize], Some]
    smallest_bytes: Annotated[int, Field(ge=4, multiple_of=4)]
    largest_bytes: Annotated[int, Field(ge=4, multiple_of=4)]
    seconds_per_size: PositiveFloat
    goals: dict[Annotated[int, Field(ge=4, multiple_of=4)], PositiveFloat]


class Invariance(Section):
    world_sizes: Annotated[list[Count], Some]
    num_steps: Count
    num_epochs: Count
    num_samples: Count


class Ladder(Section):
    world_sizes: Annotated[list[WorldSize], Some]
    num_steps: Annotated[int, Field(ge=3)]


class Noise(_Turns):
    global_batch_size: Count
    strategies: Annotated[list[str], Some]
    # a pair, and another to judge it by
    copies: Annotated[int, Field(ge=4)]
    numbers_of_rounds: Annotated[list[Annotated[int, Field(ge=6, multiple_of=2)]], Some]
    num_choices: Count
    seed: Seed


class Peers(_Turns):
    # with more, shm adds in another order than DDP
    world_size: Annotated[int, Field(ge=2, le=2)]
    global_batch_sizes: Annotated[list[Count], Some]


class Scale(Section):
    num_sentences: Annotated[list[Count], Some]
    num_repeats: Count


class Strategies(_Turns):
    global_batch_sizes: Annotated[list[Count], Some]
    num_steps: Annotated[int, Field(ge=2)]


class Zoo(Section):
    num_seeds: Annotated[int, Field(ge=2)]
    world_sizes: Annotated[list[Count], Some]
    num_loss_steps: Annotated[int, Field(ge=8)]


S = TypeVar("S", bound=Section)


def load_study(folder: Path, schema: type[S]) -> S:
    """The section of ``folder``/params.yaml that bears the folder's name.

    Raises UserError as :func:`minitrain.schema.load` does.
    """
    sections: dict[str, Any] = {folder.name: (schema, ...)}
    file = create_model("File", __base__=Section, **sections)
    found: S = getattr(load(folder / "params.yaml", file), folder.name)
    return found
