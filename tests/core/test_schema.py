import pickle
from pathlib import Path
from typing import Literal

import pytest
from one_line import refusal
from pydantic import Field

from minitrain.core.schema import (
    Count,
    Distinct,
    PositiveFloat,
    Problem,
    Section,
    Some,
    load,
)


class Knob(Section):
    turns: Count


class Oven(Section):
    degrees: Count
    rack: str | None
    trays: Some[Count]
    notes: Distinct[str]
    hours: PositiveFloat
    heat: Literal["bottom", "top"] = "top"
    lit: bool = True
    doors: Count | None = None
    knobs: dict[str, Knob] = Field({})


class Kitchen(Section):
    oven: Oven


GOOD = {
    "degrees": "180",
    "rack": "null",
    "trays": "[1, 2]",
    "notes": "[]",
    # text for a reader of YAML 1.1
    "hours": "1e-1",
}


def written(folder: Path, **changes: str) -> Path:
    lines = [f"  {key}: {value}" for key, value in {**GOOD, **changes}.items()]
    path = folder / "kitchen.yaml"
    path.write_text("\n".join(["oven:", *lines, ""]))
    return path


def test_values_have_the_types_of_the_schema(tmp_path: Path) -> None:
    oven = load(written(tmp_path), Kitchen).oven
    assert (oven.degrees, oven.rack, oven.trays) == (180, None, [1, 2])
    assert oven.hours == 0.1
    with pytest.raises(ValueError, match="frozen"):
        oven.degrees = 3  # type: ignore[misc]


MISTAKES = [
    ({"degrees": "10.0"}, "oven.degrees = 10.0: must be an integer"),
    ({"hours": "fast"}, "oven.hours = 'fast': must be a number"),
    ({"degrees": "0"}, "oven.degrees = 0: must be greater than or equal to 1"),
    ({"degrees": "true"}, "oven.degrees = true: must be an integer"),
    ({"hours": ".inf"}, "oven.hours = inf: must be a finite number"),
    ({"trays": "[]"}, "oven.trays = []: must have at least 1 item"),
    ({"trays": "[3, 3]"}, "oven.trays = [3, 3]: must be a list that holds each"),
    ({"trays": "[1, null]"}, "oven.trays[1] = null: must be an integer"),
    ({"trays": "0"}, "oven.trays = 0: must be a list, such as [1, 2]"),
    (
        {"heat": "tpo"},
        "oven.heat = 'tpo': must be 'bottom' or 'top' (did you mean top?)",
    ),
    ({"heat": "air"}, "oven.heat = 'air': must be 'bottom' or 'top'"),
    ({"degree": "1"}, "oven.degree: unknown key (did you mean degrees?)"),
    ({"zzz": "1"}, "oven.zzz: unknown key; allowed: degrees, rack, trays, notes"),
    ({"heat": "[1]"}, "oven.heat = [1]: must be 'bottom' or 'top'"),
    ({"heat": "TOP"}, "oven.heat = 'TOP': must be 'bottom' or 'top' (did you mean"),
    ({"lit": "'True'"}, "oven.lit = 'True': must be true or false"),
    # the values of a mapping have no list of allowed keys
    (
        {"knobs": "{left: {turns: 1, degrees: 1}}"},
        "oven.knobs.left.degrees: unknown key",
    ),
]


def test_mistake_is_one_line(tmp_path: Path) -> None:
    for changes, line in MISTAKES:
        path = written(tmp_path, **changes)
        message = refusal(load, path, Kitchen)
        assert message.startswith(f"{path}: {line}")
        # and nothing is meant where nothing is near
        assert ("did you mean" in message) == ("did you mean" in line)
    # of several mistakes an unknown key is named: a misspelt key is missing, too
    path = written(tmp_path, trays="0", hours="-1")
    path.write_text(path.read_text().replace("rack", "rakc"))
    line = "oven.rakc: unknown key (did you mean rack?); and 3 more"
    assert refusal(load, path, Kitchen) == f"{path}: {line}"


BAD_FILES = [
    (b"train:\n  a: [1\n  b: 2\n", ":3: not valid YAML: "),
    (b"a: 1\nb: 2\na: 3\n", ":3: not valid YAML: "),
    (b"a: \xff\n", ": not valid YAML: 'utf-8' codec can't decode byte 0xff in pos"),
    (b"a: !!bool maybe\n", ": not valid YAML: "),
    # a loader that runs code would return the folder
    (b"a: !!python/object/apply:os.getcwd []\n", ":1: not valid YAML: "),
    (b"- 1\n- 2\n", ": must hold sections"),
    (b"", ": must hold sections"),
    (b"oven:\n", ": oven = null: must be"),
]


def test_file_that_is_no_set_of_sections(tmp_path: Path) -> None:
    path = tmp_path / "kitchen.yaml"
    assert refusal(load, path, Kitchen) == f"{path}: no such file"
    for data, line in BAD_FILES:
        path.write_bytes(data)
        assert refusal(load, path, Kitchen).startswith(f"{path}{line}")


def test_problem_shows_a_long_value_short_and_travels_from_a_rank() -> None:
    assert str(Problem("a", None, "b")) == "a = null: must be b"
    # the middle is omitted: 28 characters, three dots, 28 characters
    long = str(Problem("a", "x" * 99, "b"))
    assert long == f"a = '{'x' * 27}...{'x' * 27}': must be b"
    problem = Problem("sizes", [1, None], "a list of numbers")
    assert str(pickle.loads(pickle.dumps(problem))) == str(problem)
