"""YAML as validated objects, on a file of two sections made up here."""

from pathlib import Path
from typing import Literal

import pytest
from one_line import refusal

from minitrain.core.schema import (
    Count,
    Distinct,
    PositiveFloat,
    Problem,
    Section,
    Some,
    load,
)


class Oven(Section):
    degrees: Count
    rack: str | None
    trays: Some[Count]
    notes: Distinct[str]
    hours: PositiveFloat
    heat: Literal["bottom", "top"] = "top"


class Kitchen(Section):
    oven: Oven


GOOD = {
    "degrees": "180",
    "rack": "null",
    "trays": "[1, 2]",
    "notes": "[]",
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


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"degrees": "0"}, "oven.degrees = 0: must be greater than or equal to 1"),
        ({"degrees": "yes"}, "oven.degrees = 'yes': must be a valid integer"),
        ({"degrees": "true"}, "oven.degrees = true: must be a valid integer"),
        ({"hours": ".inf"}, "oven.hours = inf: must be a finite number"),
        ({"trays": "[]"}, "oven.trays = []: must have at least 1 item"),
        ({"trays": "[3, 3]"}, "oven.trays = [3, 3]: must be a list that holds each"),
        ({"trays": "[1, null]"}, "oven.trays.1 = null: must be a valid integer"),
        ({"notes": "[a, a]"}, "oven.notes = ['a', 'a']: must be a list that holds"),
        (
            {"heat": "tpo"},
            "oven.heat = 'tpo': must be 'bottom' or 'top' (did you mean top?)",
        ),
        ({"heat": "air"}, "oven.heat = 'air': must be 'bottom' or 'top'"),
        ({"heat": "[1]"}, "oven.heat = [1]: must be 'bottom' or 'top'"),
        ({"degree": "1"}, "oven.degree: unknown key (did you mean degrees?)"),
        ({"zzz": "1"}, "oven.zzz: unknown key; allowed: degrees, rack, trays, notes"),
        # the cause before what follows from it
        (
            {"rack": "1", "rakc": "1"},
            "oven.rakc: unknown key (did you mean rack?) (and",
        ),
    ],
)
def test_mistake_is_one_line(
    changes: dict[str, str], line: str, tmp_path: Path
) -> None:
    path = written(tmp_path, **changes)
    assert refusal(load, path, Kitchen).startswith(f"{path}: {line}")


def test_problem_shows_a_long_value_short_and_as_yaml_spells_it() -> None:
    assert str(Problem("a", None, "b")) == "a = null: must be b"
    assert str(Problem("a", [True, 1], "b")) == "a = [true, 1]: must be b"
    # 57 characters and three dots, the quote among them
    assert str(Problem("a", "x" * 99, "b")) == f"a = '{'x' * 56}...: must be b"
