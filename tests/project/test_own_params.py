"""The project's params.yaml matches the schema and documents every key.

No other test reads it, so users can change it and still run the tests.
"""

import re
from pathlib import Path
from typing import Any

from project import PARAMS_FILE, ROOT
from ruamel.yaml import YAML

from minitrain.core.params import Params, load_params
from minitrain.core.schema import Section
from minitrain.sync.catalog import STRATEGIES

OWN = ROOT / "params.yaml"
TEXT = OWN.read_text(encoding="utf-8")


def keys_of(path: Path) -> dict[str, list[str]]:
    document: dict[str, Any] = YAML(typ="safe", pure=True).load(path.read_text("utf-8"))
    return {name: list(section) for name, section in document.items()}


def sections() -> dict[str, type[Section]]:
    found = {name: field.annotation for name, field in Params.model_fields.items()}
    assert all(isinstance(section, type) for section in found.values())
    return found  # type: ignore[return-value]


def test_keys_are_those_of_the_schema_in_order_and_of_the_tests() -> None:
    expected = {
        name: list(section.model_fields) for name, section in sections().items()
    }
    load_params(OWN)
    assert keys_of(OWN) == expected
    assert list(keys_of(OWN)) == list(expected)
    # tests have the same in a file of their own
    load_params(PARAMS_FILE)
    assert keys_of(PARAMS_FILE) == keys_of(OWN)


def test_every_key_of_the_file_has_a_comment_above_it() -> None:
    lines = TEXT.splitlines()
    keys = [i for i, line in enumerate(lines) if line.startswith("  ") and ":" in line]
    keys = [i for i in keys if not lines[i].lstrip().startswith(("#", "-"))]
    assert len(keys) == sum(
        len(section.model_fields) for section in sections().values()
    )
    assert [lines[i] for i in keys if not lines[i - 1].startswith("  # ")] == []


def test_comment_names_every_strategy() -> None:
    (comment,) = re.findall("# Gradient synchronization.*?\n  sync:", TEXT, re.DOTALL)
    assert [name for name in STRATEGIES if name not in comment] == []
