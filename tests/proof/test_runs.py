"""Comparison between runs, as in the equivalence stage."""

from pathlib import Path

import pytest
import torch
from tiny import tiny_params

from minitrain.core.params import Params
from minitrain.proof import runs
from minitrain.proof.runs import across_world_sizes, is_one_process
from minitrain.train.config import RunConfig, config_of


def runs_of(sync: str) -> tuple[Params, RunConfig]:
    """The parameters of runs with 2, 1 and 4 processes, and with a GPU."""
    params = tiny_params(sync=sync)
    gloo = params.gloo.model_copy(update={"world_sizes": [2, 1, 4]})
    config = config_of(params, Path(), 1)
    return params.model_copy(update={"gloo": gloo}), config


@pytest.mark.parametrize("sync", ["invariant", "invariant_shm"])
def test_bits_of_invariant_do_not_depend_on_the_world_size(
    sync: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = torch.ones(3)
    # one bit of gloo-4 differs
    states = {"gloo-1": one, "gloo-2": one.clone(), "gloo-4": one.nextafter(2 * one)}
    monkeypatch.setattr(
        runs, "load_tensors", lambda path: {"weight": states[path.parent.name]}
    )
    params, config = runs_of(sync)
    found = {
        run: across_world_sizes(run, params, config, Path())["world_sizes"]
        for run in ("gloo-1", "gloo-2", "gloo-4", "nccl-1")
    }
    verdicts = [rung.verdict for rung in found.values()]
    assert verdicts == ["not run", "equal", "breach", "not run"]
    assert found["gloo-4"].detail == "tensor weight differs"


def test_reference_is_one_process_with_ddp_and_whole_batches() -> None:
    """The reference must not share a strategy with the runs under test."""
    ddp = tiny_params(sync="ddp")
    assert is_one_process("gloo-1", ddp)
    for run, params in (
        ("gloo-2", ddp),
        ("nccl-1", ddp),
        ("gloo-1", tiny_params(sync="flat")),
        ("gloo-1", tiny_params(sync="invariant")),
        ("gloo-1", tiny_params(grad_accumulation_steps=2)),
    ):
        assert not is_one_process(run, params), (run, params.train.sync)


def test_other_strategies_are_not_compared_across_world_sizes() -> None:
    assert across_world_sizes("gloo-2", *runs_of("ddp"), Path()) == {}
