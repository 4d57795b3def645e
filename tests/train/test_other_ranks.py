"""A run that is interrupted and goes on with another number of ranks."""

import io
import json
import shutil
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny_config, tiny_params, with_factory

from minitrain.core.errors import UserError
from minitrain.core.params import Params
from minitrain.ddp import distributed
from minitrain.harness.launcher import launch
from minitrain.train import checkpoint, resume
from minitrain.train.checkpoint import Checkpoints, load_rank
from minitrain.train.config import RunConfig
from minitrain.train.observer import watches_parts
from minitrain.train.resume import begin_with
from minitrain.train.run import run_rank
from minitrain.train.step_record import TrainResult, rows_of, sha256_tensor

STEPS, LOGICAL_SHARDS = 9, 4
pytestmark = pytest.mark.slow


def be_a_rank(
    config: RunConfig, folder: Path, source: Path | None, identity: dict[str, Any]
) -> TrainResult:
    torch.set_num_threads(1)
    said = io.StringIO()
    with distributed(timeout_s=60), redirect_stderr(said):
        own = Checkpoints(folder, identity, every=1, keep=STEPS)
        if source is not None:
            own = replace(own, same_bits=config.sync.guarantees.logical_shards)
            begin_with(own, source, config)
        run = run_rank(config, observer=watches_parts, checkpoints=own)
        run.values["said"] = said.getvalue()
        return run


def train(
    params: Params,
    shards: Path,
    world_size: int,
    folder: Path,
    source: Path | None = None,
    **identity: Any,
) -> list[TrainResult]:
    config = tiny_config(params, shards, world_size)
    of = {"run": f"gloo-{world_size}", "world_size": world_size, "seed": 1, **identity}
    finished: list[TrainResult] = launch(
        be_a_rank, world_size, config, folder, source, of, timeout_s=90
    )
    return finished


def interrupted_after(step: int, folder: Path) -> Path:
    """A folder with the checkpoints that a run had that came so far."""
    left = folder.with_name(f"{folder.name}-until-{step}")
    for one in range(1, step + 1):
        shutil.copytree(folder / f"step-{one}", left / f"step-{one}")
    return left


def evidence(run: list[TrainResult]) -> tuple[Any, ...]:
    """States, the whole record but for times, and the witness's tensors."""
    hashes = [{n: sha256_tensor(t) for n, t in one.state.items()} for one in run]
    sampled = {n: sha256_tensor(t) for n, t in run[0].sampled.items()}
    shares = [one.losses for one in run]
    return hashes, json.dumps(rows_of(run)), sampled, shares


def test_invariant_at_2_then_4_then_1_is_as_if_never_interrupted(
    shards: Path, tmp_path: Path
) -> None:
    params = tiny_params(
        sync="invariant",
        logical_shards=LOGICAL_SHARDS,
        num_steps=STEPS,
        precision="fp16",
        global_batch_size=16,
    )
    params = with_factory(params, "other_models:dropout")
    wanted = {
        size: evidence(train(params, shards, size, tmp_path / f"gloo-{size}"))
        for size in (1, 2, 4)
    }
    at_2 = interrupted_after(4, tmp_path / "gloo-2")
    at_4 = tmp_path / "went-on-at-4"
    assert evidence(train(params, shards, 4, at_4, at_2)) == wanted[4]
    # its own are newer than those it began with
    at_1 = tmp_path / "went-on-at-1"
    shutil.rmtree(at_4 / "step-8")
    shutil.rmtree(at_4 / "step-7")
    run = train(params, shards, 1, at_1, at_4)
    assert run[0].went_on_from == 6
    assert evidence(run) == wanted[1]
    states = {json.dumps(found[0][0], sort_keys=True) for found in wanted.values()}
    assert len(states) == 1


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (2, 1)])
def test_ddp_goes_on_with_a_line_and_a_whole_record(
    shards: Path, tmp_path: Path, before: int, after: int
) -> None:
    params = tiny_params(num_steps=STEPS)
    first = train(params, shards, before, tmp_path / "before")
    left = interrupted_after(4, tmp_path / "before")
    run = train(params, shards, after, tmp_path / "after", left)
    assert "not the bits of an undisturbed run" in run[0].values["said"]
    rows = [
        [row for row in rows_of(one) if row["kind"] == "batch"] for one in (first, run)
    ]
    # every step once, and the samples of each on any ranks
    assert [r["sha256"] for r in rows[0]] == [r["sha256"] for r in rows[1]]
    for rank in run:
        fed = [r["step"] for r in rank.hashes if r["kind"] == "fed"]
        assert fed == [*range(STEPS)]
    losses = [
        [sum(sum(o.losses[s]) for o in one) for s in range(STEPS)]
        for one in (first, run)
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


@pytest.mark.parametrize("sync", ["zero1", "fsdp", "powersgd", "one_copy"])
def test_parts_of_ranks_are_not_dealt_anew(
    shards: Path, tmp_path: Path, sync: str
) -> None:
    with pytest.raises(UserError, match="a rank keeps a part"):
        train(tiny_params(sync=sync), shards, 2, tmp_path / "a", tmp_path)


def test_another_run_is_refused_by_what_differs(shards: Path, tmp_path: Path) -> None:
    params = tiny_params(num_steps=4)
    train(params, shards, 1, tmp_path / "one")
    with pytest.raises(UserError, match=r"another run's: seed = 1, here 2"):
        train(params, shards, 2, tmp_path / "two", tmp_path / "one", seed=2)
    with pytest.raises(UserError, match="holds no checkpoint"):
        train(params, shards, 2, tmp_path / "two", tmp_path / "one/step-2")
    assert not (tmp_path / "two").exists()


SOURCE = {"run": "gloo-1", "world_size": 1}


def begin(own: Path, source: Path, shards: Path, how: str) -> str:
    """Begin as on hosts that do not share all folders."""
    with distributed(timeout_s=60) as (rank, _):
        if how == "own":
            checkpoint.who_sees = lambda _: [True, False]
        identity = {"run": "gloo-2", "world_size": 2}
        config = tiny_config(tiny_params(), shards, 2)
        if how == "source" and rank == 1:
            resume.load_rank = lambda *_: load_rank(source.with_name("missing"))
        try:
            begin_with(Checkpoints(own, identity, 1, 9), source, config)
        except (UserError, OSError) as error:
            return str(error)
    return ""


@pytest.mark.parametrize(
    ("how", "told", "left"),
    [
        ("", "", ["rank-0.pt", "rank-1.pt", "manifest.json"]),
        ("own", "all hosts must see ", []),
        ("source", "No such file or directory: ", []),
    ],
)
def test_it_begins_if_all_see_both_folders(
    shards: Path, tmp_path: Path, how: str, told: str, left: list[str]
) -> None:
    own, source = tmp_path / "own", tmp_path / "source"
    seen = json.dumps({"rows": [], "digests": [], "losses": []})
    kept = {"model": {}, "streams": None, "random": None, "seen": seen}
    Checkpoints(source, SOURCE, 1, 9).save(3, kept)
    changed = source.stat().st_mtime_ns
    for line in launch(begin, 2, own, source, shards, how, timeout_s=60):
        assert told in line
        assert bool(line) == bool(told)
    assert sorted(path.name for path in own.glob("step-3/*")) == sorted(left)
    # it may be one where nothing can be written
    assert source.stat().st_mtime_ns == changed
