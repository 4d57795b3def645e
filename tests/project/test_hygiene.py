"""What hosts, editors and pip read: badges, issue forms, workflow, dependencies."""

import ast
import importlib.metadata
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from project import ROOT
from ruamel.yaml import YAML

from minitrain.cli.main import COMMANDS, make_parser

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LEAST = PROJECT["requires-python"].removeprefix(">=")
README = (ROOT / "README.md").read_text(encoding="utf-8")
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
FORMS = [path for path in FORMS if path.name != "config.yml"]


def read(path: Path) -> Any:
    return YAML(typ="safe").load(path.read_text(encoding="utf-8"))


def test_badges_say_what_is_true() -> None:
    shown = re.findall(r"^!\[[^]]+\]\(https:[^)]+/([^)]+)\)$", README, re.MULTILINE)
    lock = (ROOT / "requirements.lock").read_text()
    (torch,) = re.findall(r"^torch==(.+)$", lock, re.MULTILINE)
    badges = [unquote(one).replace("_", " ").rpartition("-")[0] for one in shown]
    python, license_ = f"python-{LEAST} or newer", f"license-{PROJECT['license']}"
    assert badges == [python, f"torch-{torch}", license_]
    assert f"{PROJECT['license']} License" in (ROOT / "LICENSE").read_text()


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_issue_form_is_one_and_asks_for_commands_that_there_are(path: Path) -> None:
    """By GitHub's rules: what is missing or of another kind makes it show no form."""
    form = read(path)
    assert {"name", "description", "body"} <= form.keys()
    fields = form["body"]
    assert {field["type"] for field in fields} <= {"textarea", "dropdown", "input"}
    for field in fields:
        assert field["attributes"]["label"]
        assert field["type"] != "dropdown" or field["attributes"]["options"]
    asked = re.findall(r"`minitrain ([^`]+)`", path.read_text())
    assert "doctor" in asked
    for words in map(str.split, asked):
        assert words[0] in COMMANDS
        make_parser().parse_args(words)


def test_workflow_runs_the_python_that_is_promised_and_may_only_read() -> None:
    workflow = read(ROOT / ".github/workflows/ci.yml")
    assert workflow["permissions"] == {"contents": "read"}
    job = workflow["jobs"]["test"]
    # a hang must not last six hours, and what `make test` takes must fit
    limits = map(int, re.findall(r"\d+", job["timeout-minutes"]))
    assert all(30 <= limit <= 180 for limit in limits)
    (python,) = [s["with"] for s in job["steps"] if "python" in s.get("uses", "")]
    assert f">={python['python-version']}" == PROJECT["requires-python"]
    assert (ROOT / python["cache-dependency-path"]).is_file()


def test_devcontainer_has_the_python_and_makes_what_make_needs() -> None:
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    assert container["image"].startswith(f"python:{LEAST}-")
    make, target = container["postCreateCommand"].split()
    assert make == "make"
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE)
    settings = container["customizations"]["vscode"]["settings"]
    assert all(value.endswith(".venv/bin/python") for value in settings.values())


def imported() -> set[str]:
    """Names of the packages that the library imports, anywhere in it."""
    trees = [ast.parse(path.read_text()) for path in ROOT.glob("minitrain/**/*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = [n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)]
    names += [a.name for n in nodes if isinstance(n, ast.Import) for a in n.names]
    return {name.partition(".")[0] for name in names}


def as_pip_spells(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


def test_what_the_library_imports_is_required() -> None:
    # pydantic's own second half
    others = imported() - sys.stdlib_module_names - {"minitrain", "pydantic_core"}
    assert {"torch", "ruamel", "tqdm"} <= others
    homes = importlib.metadata.packages_distributions()
    # without the versions
    names = [re.split("[<>=!~ ]", one)[0] for one in PROJECT["dependencies"]]
    required = {*map(as_pip_spells, names)}
    for name in others:
        assert required & {*map(as_pip_spells, homes.get(name, []))}, name
