"""The project's params.yaml matches the schema and documents every key.

No other test reads it, so users can change it and still run the tests.
"""

import re
from typing import Any

from project import PARAMS_FILE, ROOT, load_yaml

from minitrain.core.params import Params, load_params
from minitrain.sync.catalog import STRATEGIES

OWN = ROOT / "params.yaml"
TEXT = OWN.read_text(encoding="utf-8")


SECTIONS: dict[str, Any] = {
    name: field.annotation for name, field in Params.model_fields.items()
}


def test_keys_are_those_of_the_schema_in_order_and_of_the_tests() -> None:
    expected = {name: [*section.model_fields] for name, section in SECTIONS.items()}
    # tests have the same in a file of their own
    for file in (OWN, PARAMS_FILE):
        load_params(file)
        stated = load_yaml(file)
        assert {name: [*section] for name, section in stated.items()} == expected
        assert [*stated] == [*expected]


def test_every_key_of_the_file_has_a_comment_above_it() -> None:
    lines = TEXT.splitlines()
    keys = [i for i, line in enumerate(lines) if re.match(r"  \w.*:", line)]
    assert len(keys) == sum(len(one.model_fields) for one in SECTIONS.values())
    assert [lines[i] for i in keys if not lines[i - 1].startswith("  # ")] == []


def test_comment_names_every_strategy() -> None:
    (comment,) = re.findall("# Gradient synchronization.*?\n  sync:", TEXT, re.DOTALL)
    assert [name for name in STRATEGIES if name not in comment] == []
