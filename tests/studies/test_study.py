"""The settings that studies share; those of each are in tests/project."""

from pathlib import Path

from one_line import refusal
from study_settings import (
    Interleaved,
    InterleavedAtOneSize,
    InterleavedAtSizes,
    load_study,
)

SHARED = "world_size: 2, num_rounds: 15, steps_per_round: 1"


def written(folder: Path, text: str, name: str = "mine") -> Path:
    study = folder / name
    study.mkdir()
    (study / "params.yaml").write_text(text)
    return study


def test_sizes_are_named_by_the_key_that_says_them(tmp_path: Path) -> None:
    one = f"one: {{{SHARED}, global_batch_size: 8}}\n"
    study = load_study(written(tmp_path, one, "one"), InterleavedAtOneSize)
    assert study.batch_sizes() == {"global_batch_size": 8}
    both = f"both: {{{SHARED}, global_batch_sizes: [8, 4]}}\n"
    several = load_study(written(tmp_path, both, "both"), InterleavedAtSizes)
    assert several.batch_sizes() == {
        "global_batch_sizes.0": 8,
        "global_batch_sizes.1": 4,
    }


def test_section_bears_the_name_of_the_folder(tmp_path: Path) -> None:
    study = written(tmp_path, f"mine: {{{SHARED}}}")
    assert load_study(study, Interleaved).num_rounds == 15
    (study / "params.yaml").write_text(f"mine: {{{SHARED}}}\nalso: {{}}")
    line = refusal(load_study, study, Interleaved)
    assert line.startswith(f"{study}/params.yaml: also: unknown key")
