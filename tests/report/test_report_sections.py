"""The questions of the report: an answer beside each, and something to try."""

import re
from pathlib import Path

import pytest
from project import PARAMS_FILE, ROOT
from report_inputs import account_of, ladder_of, on_two_hosts, results, studied
from ruamel.yaml import YAML

from minitrain.report.page import compose
from minitrain.report.results import Results
from minitrain.report.section import Section
from minitrain.report.sections import learned, same, speed, where_time_goes
from minitrain.report.shown_studies import shown_studies
from minitrain.report.words import account_notes, find, headline
from minitrain.sync.catalog import STRATEGIES


def sections_of(measured: Results) -> dict[str, Section]:
    composed = compose(measured, find(measured))
    return {section.name: section for section in composed.sections}


def test_five_questions_come_first() -> None:
    names = [*sections_of(results([1, 2]))]
    assert names == ["same", "speed", "time", "learned", "bugs", "more", "hosts"]


def test_title_is_the_finding_and_says_it_for_the_picture() -> None:
    measured = results([1, 2])
    found = speed(measured, find(measured))
    assert found.finding == headline(find(measured))
    assert found.figure is not None
    assert found.figure.alt == found.finding
    assert learned(measured).finding.startswith("Loss of gloo-1, gloo-2: 5.50 at")


def test_time_is_explained_only_where_speed_was_decided() -> None:
    measured = results([1, 2])
    text = " ".join(where_time_goes(measured, find(measured)).paragraphs)
    assert text.startswith(account_notes(find(measured)))
    assert "No straggler is seen in gloo-2" in text
    close = results([1, 2], speeds={"gloo_2": 10_000})
    text = " ".join(where_time_goes(close, find(close)).paragraphs)
    assert "Of an average step" not in text
    assert text.startswith("No straggler is seen in gloo-2")


def test_nothing_to_say_of_time_is_no_empty_paragraph() -> None:
    alone = results([1], speeds={"gloo_1": 10_000})
    missing = account_of(1) | {"closed": None}
    alone.timing["gloo-1"]["account"] = missing
    assert where_time_goes(alone, find(alone)).paragraphs == []


def test_runs_on_two_hosts_are_called_that() -> None:
    ladders = {"gloo-2": ladder_of(2) | {"verdict": "proven"}}
    far = on_two_hosts(results([2], equivalence=ladders), "gloo-2")
    assert same(far).finding == "Yes, to the last bit: gloo-2 (2 hosts) is proven"


OTHER = studied(model={"n_layer": 1})


@pytest.mark.parametrize(
    ("foreign", "shown"),
    [
        ({}, ["more", "hosts"]),
        ({"studied": OTHER}, ["hosts", "left-out"]),
        ({"studied_hosts": OTHER}, ["more", "left-out"]),
        ({"studied": OTHER, "studied_hosts": OTHER}, ["left-out"]),
    ],
)
def test_studies_are_shown_or_said_to_be_left_out(
    foreign: dict[str, object], shown: list[str]
) -> None:
    found = [*shown_studies(results([1, 2], **foreign))]
    assert [section.name for section in found] == shown
    if "left-out" in shown:
        assert len(found[-1].paragraphs) == len(foreign)


def test_what_to_try_can_be_tried() -> None:
    """Keys, files, commands and lines of code that are named are there."""
    yaml = YAML(typ="safe")
    params = yaml.load(PARAMS_FILE.read_text())
    keys = {f"{section}.{key}" for section in params for key in params[section]}
    tried = " ".join(s.try_next for s in sections_of(results([1, 2])).values())
    named = re.findall("`([^`]+)`", tried)
    paths = {name for name in named if re.fullmatch(r"[a-z]+/[\w/]+\.\w+", name)}
    used = {name for name in named if re.fullmatch(r"[a-z]+\.[a-z_]+", name)}
    commands = {name for name in named if name.startswith((".venv/bin/dvc ", "make "))}
    assert len(paths) == 3
    assert all((ROOT / path).is_file() for path in paths)
    assert len(used) == 4
    assert used <= keys
    assert {command.split()[1] for command in commands} == {
        "repro",
        "metrics",
        "study-ladder",
        "study-network",
    }
    for key, study in (("world_sizes", "ladder"), ("links", "network")):
        assert f"`{key}` in `studies/{study}/params.yaml`" in tried
        settings = yaml.load((ROOT / f"studies/{study}/params.yaml").read_text())
        assert key in settings[study]
    assert "per_parameter" in STRATEGIES
    worker = Path(ROOT / "minitrain/train/worker.py").read_text()
    assert "return loss * share" in worker
