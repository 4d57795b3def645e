"""Keys of the lines of a recording, with their types and ranges.

Each line is checked once, when it is read. Unknown keys are ignored.
"""

from collections.abc import Mapping
from functools import cache
from reprlib import Repr
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    StrictBool,
    StrictFloat,
    StrictStr,
    TypeAdapter,
    ValidationError,
)

from minitrain.recording.fingerprint import BINS

# more ranks, and steps, than any run has
MOST_RANKS, MAX_COUNT = 1_000_000, 1 << 53
SHOWN = Repr()
SHOWN.maxlevel, SHOWN.maxdict, SHOWN.maxlist = 2, 2, 2


def _length(value: float) -> float:
    # ge=0 would reject NaN, which a norm may be
    if value < 0:
        raise ValueError
    return value


Count = Annotated[int, Strict(), Field(ge=0, le=MAX_COUNT)]
Positive = Annotated[int, Strict(), Field(ge=1, le=MAX_COUNT)]
Sketch = Annotated[list[StrictFloat], Field(min_length=BINS, max_length=BINS)]
Length = Annotated[StrictFloat, AfterValidator(_length)]
Texts = dict[str, StrictStr]
Names = list[StrictStr]


class About(BaseModel):
    """A parameter of the model: an entry of ``parameters`` in the header."""

    shape: list[Count]
    dtype: StrictStr
    trained: StrictBool


class Print(BaseModel):
    """A fingerprint of a tensor, see fingerprint.py."""

    hash: StrictStr
    norm: Length
    sketch: Sketch


class OfIntegers(BaseModel):
    """A fingerprint of a buffer of integers: only a hash."""

    model_config = ConfigDict(extra="forbid")
    hash: StrictStr


class Called(BaseModel):
    """A module call in a forward pass: name, fingerprints of inputs and outputs."""

    module: StrictStr
    inputs: Print
    outputs: Print


class Group(BaseModel):
    """A parameter group of an optimizer: names of parameters, and their settings."""

    parameters: Names
    settings: dict[str, StrictStr | StrictBool | StrictFloat | list[StrictFloat]]


Prints = dict[str, Print]
Buffers = dict[str, OfIntegers | Print]
TOLD = {
    "rule": StrictStr,
    "step": Annotated[int, Strict(), Field(ge=-1, le=MAX_COUNT)],
    "ranks": list[Count],
    "tensor": StrictStr,
    "line": StrictStr,
}
# required keys, by kind of line
FIELDS: dict[str, dict[str, Any]] = {
    "recording": {
        **dict.fromkeys(("version", "every", "threads"), Positive),
        **dict.fromkeys(("torch", "device"), StrictStr),
        "rank": Count,
        "world_size": Annotated[int, Strict(), Field(ge=1, le=MOST_RANKS)],
        "twin": StrictBool,
        "bins": Annotated[int, Strict(), Field(ge=BINS, le=BINS)],
        "parameters": dict[str, About],
        "start": Texts,
    },
    "step": {
        **dict.fromkeys(("optimizer", "step", "forwards", "wrapper_id"), Count),
        **dict.fromkeys(("unread", "random", "wrapper"), StrictStr),
        **dict.fromkeys(("beside", "without_gradient", "not_held"), Names),
        **dict.fromkeys(("before", "moments"), Texts),
        **dict.fromkeys(("gradients", "parameters"), Prints),
        **dict.fromkeys(("synced", "broadcast_buffers"), StrictBool | None),
        "inputs": list[Names],
        "loss": StrictFloat | None,
        "lr": list[StrictFloat],
        "groups": list[Group],
        "draws": StrictBool,
        "syncs": list[StrictBool | None],
        "group": Positive | None,
        "own": dict[str, Sketch],
        "buffers": Buffers,
    },
    "alarm": TOLD,
    "note": TOLD,
    "end": {"steps": dict[str, Count], "forwards": Count},
}
# optional keys; an end has no tensors if parameters are sharded and a rank was missing
MAY_HAVE: dict[str, dict[str, Any]] = {
    "recording": {"tied": Texts},
    "step": {
        **dict.fromkeys(("sharded", "not_finite"), StrictBool),
        "reductions": Count,
        "carried": Names,
        "also": Texts,
        "unpadded": list[list[Names]],
        "passes": dict[str, list[Sketch]],
        "unlabelled": list[Names],
        "modules": list[Called],
    },
    "end": {"also": Texts, "parameters": Prints, "buffers": Buffers},
}


@cache
def _adapters(kind: str) -> dict[str, TypeAdapter[Any]]:
    fields = FIELDS[kind] | MAY_HAVE.get(kind, {})
    return {key: TypeAdapter(wanted) for key, wanted in fields.items()}


def fault_of(row: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a line, or None. KeyError for an unknown kind."""
    kind = row["kind"]
    for key, adapter in _adapters(kind).items():
        try:
            if key in row:
                adapter.validate_python(row[key])
            elif key in FIELDS[kind]:
                return f"{kind} without {key}"
        except ValidationError:
            return f"{kind} with {key} = {shown(row[key])}"
    return None


def shown(value: Any) -> str:
    """Return a shortened ``repr`` for an error message: at most 80 characters."""
    return SHOWN.repr(value)[:80]
