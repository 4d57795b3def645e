"""Schema of studies/prediction/params.yaml."""

from typing import Annotated, Any, Literal, Self

from distinct import repeated
from pydantic import AfterValidator, Field, model_validator
from setting import checked_link, name_of, new_in, setting_of
from study_settings import Rounds, WorldSize

from minitrain.core.schema import Count, PositiveFloat, Problem, Section, Some

# float32
Bytes = Annotated[int, Field(ge=4, multiple_of=4)]
Link = Annotated[str, AfterValidator(checked_link)]
# options for which held-out settings must have values that no fitted setting has
NEW = ("n_embd", "processes", "link")


def _setting(row: list[Any]) -> list[Any]:
    setting_of(row)
    return row


Row = Annotated[list[Any], AfterValidator(_setting)]


class Sweep(Section):
    link: Link
    processes: WorldSize
    sizes: Some[Bytes]


class Asked(Section):
    question: Literal["processes", "compression"]
    over: Literal["batch", "width", "mbit"]
    smallest: PositiveFloat
    largest: PositiveFloat
    setting: Row

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.largest <= self.smallest:
            allowed = f"above smallest = {self.smallest:g}"
            raise Problem("largest", self.largest, allowed)
        return self


class Wire(Section):
    gbit_per_s: PositiveFloat
    alpha_us: PositiveFloat


class Scale(Section):
    smallest_ranks: Count
    largest_ranks: Count
    ranks_per_host: Count
    n_layer: Count
    n_embd: Count
    block_size: Count
    vocab_size: Count
    samples: Count
    tflop_per_s: PositiveFloat
    bucket_cap_mb: PositiveFloat
    inside: Wire
    networks: dict[str, Wire]


class Prediction(Section):
    num_rounds: Rounds
    steps_per_round: Count
    fit: Some[Row]
    held_out: Some[Row]
    sweeps: Annotated[list[Sweep], Field(min_length=1)]
    held_out_sizes: Some[Bytes]
    num_draws: Count
    crossovers: Annotated[list[Asked], Field(min_length=1)]
    num_verifying_rounds: Rounds
    scale: Scale

    @model_validator(mode="after")
    def _holds_out_something_new(self) -> Self:
        fitted, held_out = (list(map(setting_of, x)) for x in (self.fit, self.held_out))
        if found := repeated(fitted, held_out):
            allowed = f"no repetition of {name_of(found[1])}"
            raise Problem(f"held_out.{found[0]}", self.held_out[found[0]], allowed)
        new = {name for setting in held_out for name in new_in(setting, fitted)}
        for name in sorted({*NEW} - new):
            allowed = f"a list with a setting whose {name} no setting of fit has"
            raise Problem("held_out", self.held_out, allowed)
        return self
