"""The params.yaml of every study: valid as committed, mistakes are one line."""

import shutil
from contextlib import closing
from functools import cache
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
from dvc.repo import Repo
from one_line import refusal
from project import PARAMS_FILE, ROOT, load_yaml, set_params
from study_settings import load_study
from test_docs import written_by

from minitrain.core.schema import Section

STUDIES = sorted(file.parent.name for file in ROOT.glob("studies/*/params.yaml"))


@cache
def schema_of(name: str) -> type[Section]:
    module = run_path(str(ROOT / f"studies/{name}/{name}_settings.py"))
    schema: type[Section] = module[name.capitalize()]
    return schema


def test_every_study_fits_its_schema() -> None:
    for name in STUDIES:
        folder = ROOT / "studies" / name
        settings = load_study(folder, schema_of(name))
        stated = load_yaml(folder / "params.yaml")
        assert settings.model_dump(mode="json") == stated[name]
        # else `dvc params diff` fails on all of them
        assert [n for n in names(stated) if not isinstance(n, str)] == [], name


# rules for all keys: tests/core/test_schema.py
MISTAKES: list[tuple[str, str, Any, str]] = [
    ("strategies", "num_round", 16, "num_round: unknown key (did you mean num_r"),
    ("strategies", "global_batch_sizes", [8], "global_batch_sizes = [8]: must h"),
    ("buckets", "bucket_caps_mb", [1], "bucket_caps_mb = [1.0]: must be a list w"),
    ("collectives", "smallest_bytes", 12, "smallest_bytes = 12: must be a power"),
    ("noise", "strategies", [*"abcde"], "strategies = ['a', 'b', 'c', 'd', 'e']:"),
    ("noise", "numbers_of_rounds", [22, 24], "numbers_of_rounds = [22, 24]: mus"),
    ("stragglers", "smallest_delay", 0.6, "smallest_delay = 0.6: must be at most"),
]


def test_what_does_not_fit_is_one_line(tmp_path: Path) -> None:
    for number, (name, key, value, expected) in enumerate(MISTAKES):
        # in a project with the parameters of the tests
        folder = tmp_path / f"{number}/studies/{name}"
        folder.mkdir(parents=True)
        shutil.copy(PARAMS_FILE, folder.parents[1])
        shutil.copy(ROOT / f"studies/{name}/params.yaml", folder)
        set_params(folder, {f"{name}.{key}": value})
        line = refusal(load_study, folder, schema_of(name))
        assert line.startswith(f"{folder}/params.yaml: {name}.{expected}")


def names(value: Any) -> list[Any]:
    """All keys in a document."""
    inner = value.items() if isinstance(value, dict) else []
    return [name for key, below in inner for name in (key, *names(below))]


def stages_of(name: str) -> list[dict[str, Any]]:
    return [*load_yaml(ROOT / f"studies/{name}/dvc.yaml")["stages"].values()]


def test_every_setting_is_tracked_by_a_stage_and_a_mistake_costs_no_result() -> None:
    for name in STUDIES:
        # DVC removes what does not persist before a stage runs, and so fails
        outs = [[*out.values()] for s in stages_of(name) for out in s["outs"]]
        assert outs == [[{"cache": False, "persist": True}]] * len(outs), name
        tracked = {key for s in stages_of(name) for key in s.get("params", [])}
        for key in schema_of(name).model_fields:
            assert tracked & {name, f"{name}.{key}"}, f"{name}.{key}"


def test_no_study_writes_what_another_writes_or_the_pipeline_reads() -> None:
    """Else `dvc repro` of one would run the other."""
    written: list[Path] = []
    read: set[Path] = set()
    for file in [ROOT / "dvc.yaml", *sorted(ROOT.glob("studies/*/dvc.yaml"))]:
        for stage in load_yaml(file)["stages"].values():
            written += [(file.parent / out).resolve() for out in written_by(stage)]
            if file.parent == ROOT:
                read |= {(ROOT / dep).resolve() for dep in stage["deps"]}
    of_studies = {path for path in written if path.is_relative_to(ROOT / "studies")}
    assert len(of_studies) > len(STUDIES)
    assert not of_studies & read
    assert len(set(written)) == len(written)


def stages_known_to_dvc(root: Path) -> set[str]:
    """Load all stages as ``dvc repro`` does, including its checks."""
    with closing(Repo(str(root))) as repo:
        repo.index.check_graph()
        return {stage.addressing for stage in repo.index.stages}


# of a library that DVC keeps its tree of outputs in
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:_NoneStep.value:DeprecationWarning")
def test_dvc_takes_every_stage_of_every_study() -> None:
    names = stages_known_to_dvc(ROOT / "studies")
    files = {Path(name.partition(":")[0]) for name in names}
    assert {file.parent.name for file in files} == {*STUDIES}
    # a project of their own: the pipeline's commands show none of them
    assert not any("studies" in name for name in stages_known_to_dvc(ROOT))
