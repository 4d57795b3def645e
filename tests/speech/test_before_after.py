"""The same model before and after training, with the same dice."""

from pathlib import Path
from typing import Any

import pytest
import torch
from mutated import PREPARE, TRAIN, run_stages
from project import copy_project
from tiny import tiny_params

from minitrain.core.errors import UserError
from minitrain.core.files import read_json
from minitrain.core.params import Params
from minitrain.speech.before_after import before_and_after, readable, start_model
from minitrain.speech.speaker import NUM_TEXTS
from minitrain.train.config import config_of
from minitrain.train.recorder import load_tensors, save_tensors


def state_that_says(params: Params, path: Path, factor: float) -> Path:
    """The start state with another head: ``factor`` makes other letters likely."""
    state = start_model(params).state_dict()
    state["head.weight"] = factor * state["head.weight"]
    save_tensors(path, state)
    return path


def test_model_starts_as_that_of_rank_0() -> None:
    params = tiny_params(seed=7)
    start = config_of(params, Path("nowhere"), 1, steps=1).start_model(0).state_dict()
    mine = start_model(params).state_dict()
    assert mine.keys() == start.keys()
    assert all(torch.equal(mine[name], start[name]) for name in start)
    other = start_model(tiny_params(seed=8)).state_dict()
    assert not torch.equal(other["head.weight"], start["head.weight"])


def test_runs_speak_after_what_was_said_before(tmp_path: Path) -> None:
    params = tiny_params()
    states = {
        "gloo-1": state_that_says(params, tmp_path / "1.pt", 50.0),
        "gloo-2": state_that_says(params, tmp_path / "2.pt", 50.0),
    }
    told = before_and_after(params, states)
    assert told["mute"] is None
    assert (told["seed"], told["temperature"]) == (params.train.seed, 0.7)
    assert [*told["after"]] == ["gloo-1", "gloo-2"]
    assert told["after"]["gloo-1"] == told["after"]["gloo-2"] != told["before"]
    assert len(told["before"]) == len(told["after"]["gloo-1"]) == NUM_TEXTS
    assert told["same_texts"] is True
    # whatever ran before it
    assert before_and_after(params, states) == told


def test_untrained_state_says_what_was_said_before(tmp_path: Path) -> None:
    params = tiny_params()
    told = before_and_after(params, {"x": state_that_says(params, tmp_path / "x", 1)})
    assert told["after"]["x"] == told["before"]
    assert told["same_texts"] is None


def test_runs_that_say_something_else_are_told_apart(tmp_path: Path) -> None:
    params = tiny_params()
    states = {
        str(factor): state_that_says(params, tmp_path / f"{factor}.pt", factor)
        for factor in (50.0, -50.0)
    }
    assert before_and_after(params, states)["same_texts"] is False


def test_model_without_logits_is_one_clear_word(tmp_path: Path) -> None:
    params = tiny_params()
    mute = params.model.model_copy(update={"factory": "other_models:with_mask"})
    params = params.model_copy(update={"model": mute})
    assert before_and_after(params, {"gloo-1": tmp_path / "none.pt"}) == {
        "seed": params.train.seed,
        "temperature": 0.7,
        "mute": "its output has no logits",
        "before": [],
        "after": {},
        "same_texts": None,
    }


def test_state_that_is_cut_or_of_another_model_is_named(tmp_path: Path) -> None:
    params = tiny_params()
    path = state_that_says(params, tmp_path / "state.pt", 1.0)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match=r"state\.pt: damaged"):
        before_and_after(params, {"gloo-1": path})
    save_tensors(path, {"weight": torch.zeros(1)})
    with pytest.raises(UserError, match=r"state\.pt: damaged"):
        before_and_after(params, {"gloo-1": path})


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert readable(b"caf\xc3\xa9") == "caf\N{LATIN SMALL LETTER E WITH ACUTE}"
    # no UTF-8, a control character that would move a terminal's cursor, a line end
    assert readable(b"a\xe9b\x1b[2Jc\n") == "a\ufffdb\ufffd[2Jc\ufffd"


def test_stage_lets_every_run_speak(stages_by_fork: str, tmp_path: Path) -> None:
    project = copy_project(tmp_path / "project", {"train.num_steps": 3})

    def told(*before: list[str]) -> dict[str, Any]:
        outcome = run_stages(stages_by_fork, project, [*before, ["sample"]])
        assert outcome.code == 0, outcome.output
        found: dict[str, Any] = read_json(project / "metrics/samples.json")
        return found

    trained = told(*PREPARE, *TRAIN)
    assert [*trained["after"]] == ["gloo-1", "gloo-2"]
    # it is the final state that speaks: a head the other way round says other things
    path = project / "data/runs/gloo-2/states/state-rank-0.pt"
    state = load_tensors(path)
    state["head.weight"] *= -50
    save_tensors(path, state)
    turned = told()
    assert turned["before"] == trained["before"]
    assert turned["after"]["gloo-1"] == trained["after"]["gloo-1"]
    assert turned["after"]["gloo-2"] != trained["after"]["gloo-2"]
    assert turned["same_texts"] is False
