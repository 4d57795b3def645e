from pathlib import Path
from typing import Any

import pytest
from one_line import refusal
from project import PARAMS_FILE, set_params

from minitrain.core.params import Params, load_params

TEXT = PARAMS_FILE.read_text(encoding="utf-8")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "params.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def changed(path: Path, **changes: Any) -> Params:
    """Load ``path`` with ``section__key=value`` changed in it."""
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    set_params(path.parent, dotted)
    return load_params(path)


def line_of(path: Path, changes: dict[str, Any]) -> str:
    path.write_text(TEXT)
    set_params(path.parent, changes)
    return refusal(load_params, path)


def test_runs_are_named_by_backend_and_size(path: Path) -> None:
    params = changed(path, gloo__world_sizes=[4, 2], nccl__world_sizes=[8, 2])
    assert params.runs() == {"gloo-4": 4, "gloo-2": 2, "nccl-8": 8, "nccl-2": 2}
    # 1, and each size once
    assert params.all_world_sizes() == [1, 2, 4, 8]


def test_warmup_is_checked_when_epochs_have_become_steps(path: Path) -> None:
    train = changed(path, train__num_steps=None, train__num_epochs=2).train
    assert (train.num_steps, train.num_epochs) == (None, 2)
    train.check_warmup(51)
    line = refusal(train.check_warmup, 50)
    assert line.startswith("params.yaml: train.num_warmup_steps = 50: must be below")


TAKEN: dict[str, list[Any]] = {
    "model.factory": ["_private", "GPT2", "package:make", "a.b_c.d:make"],
    "corpus.source": ["a.csv", "my.texts/b.txt", "/tmp/c.jsonl"],
    # the last is the maximum
    "train.learning_rate": [1, 1e9],
    "launch.timeout_s": [86_400],
    "train.threads_per_process": [256],
    "train.hash_every": [2**31 - 1],
    "train.seed": [2**32 - 1],
}


def test_value_that_is_taken(path: Path) -> None:
    for key, values in TAKEN.items():
        for value in values:
            path.write_text(TEXT)
            set_params(path.parent, {key: value})
            section, name = key.split(".")
            assert getattr(getattr(load_params(path), section), name) == value
        if isinstance(values[-1], int | float):
            assert f"{key} = " in line_of(path, {key: values[-1] + 1})


A_NAME = "must be a name in model.file, or package.module:"
A_SOURCE = "must be a .csv, .txt or .jsonl file"
# key, its value in the file, and the line after "key = "; rules for all keys are in
# test_schema.py
VALUES = [
    ("environment.torch", 2.13, "2.13: must be text, in quotes if it looks"),
    ("train", [1], "[1]: must be a section, which holds keys"),
    ("model.n_embd", 130, "130: must be a multiple of model.n_head = 4"),
    ("model.block_size", 7, "7: must be greater than or equal to 8"),
    ("model.factory", "a:b:c", f"'a:b:c': {A_NAME}"),
    ("model.factory", "2gpt", f"'2gpt': {A_NAME}"),
    ("corpus.source", "texts.xml", f"'texts.xml': {A_SOURCE}"),
    ("train.optimizer", "adam", "'adam': must be 'adamw' or 'sgd'"),
    ("shard.long_samples", "drop", "'drop': must be 'split' or 'cut'"),
    ("train.num_steps", None, "null: must be a number if num_epochs is null"),
    ("train.num_warmup_steps", 100, "100: must be below the number of steps, 100"),
    ("launch.max_restarts", 101, "101: must be less than or equal to 100"),
    ("baseline.num_rounds", 4, "4: must be greater than or equal to 5"),
    ("gloo.world_sizes", [], "[]: must have at least 1 item"),
    ("nccl.world_sizes", [2, 2], "[2, 2]: must be a list that holds each value once"),
]


def test_value_that_is_refused(path: Path) -> None:
    for key, value, line in VALUES:
        assert line_of(path, {key: value}).startswith(f"{path}: {key} = {line}")
    both = f"{path}: train.num_steps = 100: must be null if num_epochs = 2: set either"
    assert line_of(path, {"train.num_epochs": 2}).startswith(both)
    for sizes, section in (([1, 3], "gloo"), ([2, 5], "nccl"), ([64], "gloo")):
        line = line_of(path, {f"{section}.world_sizes": sizes})
        told = f"must be a multiple of {sizes[-1]}, from {section}.world_sizes"
        assert line == f"{path}: train.global_batch_size = 32: {told}"


MAY_BE_0 = ("corpus.seed", "train.seed", "launch.max_restarts")
NUMBERS = {
    f"{section}.{key}": value
    for section, keys in load_params(PARAMS_FILE).model_dump().items()
    for key, value in keys.items()
    if isinstance(value, int | float | None) and not isinstance(value, bool)
}


def test_number_that_no_c_type_takes_is_one_line(path: Path) -> None:
    """Torch and gloo fail with tracebacks, and with timeouts in the past."""
    many, much = 10**19, 1e300
    for key, number in NUMBERS.items():
        value = much if isinstance(number, float) or key.endswith("_mb") else many
        others = {"train.num_steps": None} if "epochs" in key else {}
        line = f"{path}: {key} = {value}: must be less than or equal to "
        assert line_of(path, others | {key: value}).startswith(line)
        # nor one that means nothing
        least = -1 if key in MAY_BE_0 else 0
        line = f"{path}: {key} = {least}: must be greater than "
        assert line_of(path, others | {key: least}).startswith(line)
