"""What hosts and pip read: badges, workflow, dependencies."""

import ast
import importlib.metadata
import re
import sys
import tomllib
from urllib.parse import unquote

from project import ROOT
from ruamel.yaml import YAML

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LEAST = PROJECT["requires-python"].removeprefix(">=")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_badges_say_what_is_true() -> None:
    shown = re.findall(r"^!\[[^]]+\]\(https:[^)]+/([^)]+)\)$", README, re.MULTILINE)
    lock = (ROOT / "requirements.lock").read_text()
    (torch,) = re.findall(r"^torch==(.+)$", lock, re.MULTILINE)
    badges = [unquote(one).replace("_", " ").rpartition("-")[0] for one in shown]
    python, license_ = f"python-{LEAST} or newer", f"license-{PROJECT['license']}"
    assert badges == [python, f"torch-{torch}", license_]
    assert f"{PROJECT['license']} License" in (ROOT / "LICENSE").read_text()


def test_workflow_runs_the_python_that_is_promised_and_may_only_read() -> None:
    text = (ROOT / ".github/workflows/ci.yml").read_text()
    workflow = YAML(typ="safe").load(text)
    assert workflow["permissions"] == {"contents": "read"}
    job = workflow["jobs"]["test"]
    # a hang must not last six hours, and what `make test` takes must fit
    limits = map(int, re.findall(r"\d+", job["timeout-minutes"]))
    assert all(30 <= limit <= 180 for limit in limits)
    (python,) = [s["with"] for s in job["steps"] if "python" in s.get("uses", "")]
    assert f">={python['python-version']}" == PROJECT["requires-python"]
    assert (ROOT / python["cache-dependency-path"]).is_file()


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
