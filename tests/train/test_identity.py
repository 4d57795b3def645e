"""A checkpoint belongs to all that decides the bits of a run, and to nothing else."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny import ROOT, tiny_params

from minitrain.core.params import Params
from minitrain.train import identity
from minitrain.train.identity import checkpoints_of, difference, identity_of
from studies.import_graph import imported_by


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def of(params: Params, folder: Path, world_size: int = 2) -> dict[str, Any]:
    return identity_of(params, folder, f"gloo-{world_size}", world_size)


def with_model(params: Params, **changes: Any) -> Params:
    return params.model_copy(update={"model": params.model.model_copy(update=changes)})


def test_code_in_it_is_all_that_a_run_and_its_replay_import() -> None:
    found: set[str] = set()
    for file in ("train/run.py", "proof/replay.py"):
        found |= imported_by(ROOT, Path("minitrain", file))
    inside = [Path(file).parts for file in found]
    assert {*identity.COMPUTE} == {parts[1] for parts in inside if len(parts) > 2}


def test_every_parameter_of_training_is_in_it_or_only_times(shards: Path) -> None:
    params = tiny_params()
    names = {"optimizer": "sgd", "precision": "bf16", "sync": "flat"}
    one = of(params, shards / "world-2")
    for key, value in params.train.model_dump().items():
        if isinstance(value, str):
            other: Any = names[key]
        else:
            other = not value if isinstance(value, bool) else (value or 0) + 1
        changed = params.with_train(**{key: other})
        found = difference(one, of(changed, shards / "world-2"))
        only_times = key == "num_warmup_steps"
        assert found == "" if only_times else found.startswith(f"train.{key} = "), key


def test_model_data_code_and_ranks_are_in_it(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params, two = tiny_params(), shards / "world-2"
    one = of(params, two)
    assert difference(one, of(params, two)) == ""
    other = of(with_model(params, n_embd=8), two)
    assert difference(one, other).startswith("model.n_embd = ")
    ranks = of(params, shards / "world-1", 1)
    assert difference(one, ranks).startswith("run = 'gloo-2', here 'gloo-1'")
    data = Path(shutil.copytree(two, tmp_path / "world-2"))
    (data / "targets.npy").write_bytes(b"1")
    assert difference(one, of(params, data)).startswith("targets.npy's content = ")
    (data / "index.json").write_text('{"samples_sha256": "abc"}')
    assert difference(one, of(params, data)).startswith("samples = ")
    code = Path(shutil.copytree(identity.PACKAGE, tmp_path / "code"))
    monkeypatch.setattr(identity, "PACKAGE", code)
    (code / "report" / "words.py").write_text("")
    assert difference(one, of(params, two)) == ""
    (code / "sync" / "after_backward.py").write_text("")
    assert difference(one, of(params, two)).startswith("minitrain's code = ")
    # so that two runs have two folders
    folders = {
        checkpoints_of(one, shards / f"world-{w}", f"gloo-{w}", w).folder
        for one in (params, params.with_train(seed=5))
        for w in (1, 2)
    }
    assert len(folders) == 4


def test_files_that_a_user_names_are_in_it(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    mine = tmp_path / "my_strategy.py"
    code = "from minitrain.sync.after_backward import Flat\n\n"
    code += "class Mine(Flat):\n    pass\n"
    mine.write_text(code)
    beside = tmp_path / "model"
    beside.mkdir()
    schedule, model = beside / "schedule.json", tmp_path / "model.py"
    for file in (schedule, model):
        file.write_text("1")
    params = tiny_params(sync="my_strategy:Mine")
    params = with_model(params, deps=str(beside), file=str(model))
    for file, new, key in (
        (mine, code + "# 2\n", "train.sync's code"),
        (schedule, "2", "model.deps' content"),
        (model, "2", "model.file's content"),
    ):
        before = of(params, shards / "world-2")
        file.write_text(new)
        after = of(params, shards / "world-2")
        assert difference(before, after).startswith(f"{key} = ")
