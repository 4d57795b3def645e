"""The params.yaml of every study: what stands there fits, what does not is one line."""

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from minitrain import studies
from minitrain.errors import UserError
from minitrain.schema import Section
from minitrain.studies import load_study

ROOT = Path(__file__).parents[1]
STUDIES = sorted(file.parent.name for file in ROOT.glob("studies/*/params.yaml"))


def schema_of(name: str) -> type[Section]:
    schema: type[Section] = getattr(studies, name.capitalize())
    return schema


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_fits_its_schema(name: str) -> None:
    settings = load_study(ROOT / "studies" / name, schema_of(name))
    stated = YAML(typ="safe").load((ROOT / f"studies/{name}/params.yaml").read_text())
    assert settings.model_dump() == stated[name]


@pytest.mark.parametrize(
    ("name", "key", "value", "expected"),
    [
        ("strategies", "world_size", 1, "world_size = 1: must be greater than or"),
        ("strategies", "num_rounds", 14, "num_rounds = 14: must be greater than or"),
        ("strategies", "num_round", 16, "num_round: unknown key (did you mean num_r"),
        ("strategies", "steps_per_round", None, "steps_per_round = None: must be a"),
        ("buckets", "bucket_caps_mb", [0, None], "bucket_caps_mb.0 = 0: must be gr"),
        ("buckets", "bucket_caps_mb", [1], "bucket_caps_mb = [1.0]: must be a list w"),
        ("collectives", "smallest_bytes", 6, "smallest_bytes = 6: must be a multip"),
        ("collectives", "goals", {"4k": 3}, "goals.4k.[key] = '4k': must be a valid"),
        ("ladder", "world_sizes", [], "world_sizes = []: must have at least 1 item"),
        ("noise", "copies", 3, "copies = 3: must be greater than or equal to 4"),
        ("peers", "world_size", 3, "world_size = 3: must be less than or equal to 2"),
    ],
)
def test_what_does_not_fit_is_one_line(
    name: str, key: str, value: Any, expected: str, tmp_path: Path
) -> None:
    yaml = YAML(typ="safe")
    stated = yaml.load((ROOT / f"studies/{name}/params.yaml").read_text())
    stated[name][key] = value
    folder = tmp_path / name
    folder.mkdir()
    with open(folder / "params.yaml", "w") as file:
        yaml.dump(stated, file)
    with pytest.raises(UserError) as caught:
        load_study(folder, schema_of(name))
    line = str(caught.value)
    assert line.startswith(f"{folder}/params.yaml: {name}.{expected}")
    assert "\n" not in line


def test_a_section_of_another_name_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "ladder"
    folder.mkdir()
    (folder / "params.yaml").write_text("leiter: {num_steps: 3, world_sizes: [2]}\n")
    with pytest.raises(UserError, match=r"params\.yaml: leiter: unknown key"):
        load_study(folder, schema_of("ladder"))
