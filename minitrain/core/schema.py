"""Frozen, validated objects from YAML files.

Unknown keys are errors. A mistake raises :class:`~minitrain.core.errors.UserError`, one
line with the file, the key, the value and the allowed values.
"""

import re
import reprlib
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from minitrain.core.errors import UserError, did_you_mean
from minitrain.core.files import require_regular
from minitrain.core.printable import shortened

# limits of the C types in torch and gloo
MAX_COUNT, MAX_FLOAT = 2**31 - 1, 1e9
LONGEST_VALUE = 60
# replaces pydantic's messages that name Python types
WANTED = {
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text, in quotes if it looks like a number",
    "list_type": "a list, such as [1, 2]",
    "model_type": "a section, which holds keys",
}

Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
PositiveFloat = Annotated[float, Field(gt=0, le=MAX_FLOAT, allow_inf_nan=False)]


V = TypeVar("V")


def _each_once(values: list[V]) -> list[V]:
    if any(values.count(value) > 1 for value in values):
        raise ValueError("must be a list that holds each value once")
    return values


# Distinct[Count] is a list without duplicates; Some[Count] a non-empty one
Distinct = Annotated[list[V], AfterValidator(_each_once)]
Some = Annotated[Distinct[V], Field(min_length=1)]


class Section(BaseModel):
    """Mapping of keys: frozen, no unknown keys, no implicit type conversion."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, protected_namespaces=()
    )


S = TypeVar("S", bound=Section)


class Problem(UserError, ValueError):
    """UserError that pydantic collects as a validation error of a section.

    ``args``: the key, relative to the section that raises the error (:func:`load` adds
    the prefix); its value; a description of the allowed values.
    """

    def __str__(self) -> str:
        key, value, allowed = self.args
        return f"{key} = {_shown(value)}: must be {allowed}"


def load(path: Path, schema: type[S]) -> S:
    """Return ``path``, a YAML file of sections, as an object of ``schema``. Raises
    UserError if it is missing, not YAML, or does not match.
    """
    # installed only with the extra `lab`
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        text = require_regular(path).read_text(encoding="utf-8")
        document = YAML(typ="safe", pure=True).load(text)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (YAMLError, ValueError, LookupError, RecursionError) as error:
        # not UTF-8, not YAML, or an invalid scalar: a date in month 13, !!bool maybe
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        why = " ".join(str(getattr(error, "problem", None) or error).split())
        raise UserError(f"{path}{line}: not valid YAML: {why}") from None
    if not isinstance(document, dict):
        raise UserError(f"{path}: must hold sections, each a mapping of keys")
    return validated(document, schema, f"{path}: ")


def validated(values: dict[str, Any], schema: type[S], start: str = "") -> S:
    """Return ``values`` as an object of ``schema``. Raises UserError: ``start``, the
    first mistake, and the number of others.
    """
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        # unknown keys first: a misspelt key is also reported as missing
        first, *more = sorted(
            error.errors(), key=lambda d: d["type"] != "extra_forbidden"
        )
        others = f"; and {len(more)} more" if more else ""
        raise UserError(f"{start}{_one_error(schema, first)}{others}") from None


def _one_error(schema: type[Section], detail: ErrorDetails) -> str:
    kind, value, parts = detail["type"], detail["input"], [*detail["loc"]]
    places = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts]
    key = "".join(places).removeprefix(".")
    if kind == "extra_forbidden":
        return f"{key}: unknown key{_suggestion(schema, [*map(str, parts)])}"
    if kind == "missing":
        return f"{key}: is missing"
    problem = detail.get("ctx", {}).get("error")
    if isinstance(problem, Problem):
        return f"{key}.{problem}" if key else str(problem)
    if kind in WANTED:
        return f"{key} = {_shown(value)}: must be {WANTED[kind]}"
    message = re.sub("^(Input|List|Value) should", "must", detail["msg"])
    message = message.removeprefix("Value error, ").partition(" after validation")[0]
    return f"{key} = {_shown(value)}: {message}{_meant(detail)}"


def _meant(detail: ErrorDetails) -> str:
    expected = re.findall("'(.*?)'", str(detail.get("ctx", {}).get("expected", "")))
    word = detail["input"]
    return did_you_mean(word, expected) if isinstance(word, str) else ""


def _suggestion(schema: type[Section], parts: list[str]) -> str:
    # below a key, as in the values of a mapping, there are no fields
    fields = schema.model_fields
    for part in parts[:-1]:
        kind = fields[part].annotation if part in fields else None
        fields = getattr(kind, "model_fields", {})
    allowed = f"; allowed: {', '.join(fields)}" if fields else ""
    return did_you_mean(parts[-1], fields) or allowed


def _shown(value: object) -> str:
    # YAML spelling; shortened, since aliases can expand to billions of items
    nested = isinstance(value, list | dict)
    text = reprlib.repr(value) if nested else repr(value)
    words = {"None": "null", "True": "true", "False": "false"}
    return shortened(words.get(text, text), LONGEST_VALUE)
