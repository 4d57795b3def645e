"""Files for other programs: the docs as a site, the workflow, dependencies."""

import ast
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import canonicalize_name
from project import ROOT, load_yaml, run_in

MKDOCS = ROOT / ".venv-docs/bin/mkdocs"
SETTINGS: dict[str, Any] = load_yaml(ROOT / "mkdocs.yml")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def listed(menu: Any) -> Iterator[str]:
    if isinstance(menu, str):
        yield menu
    for one in menu if isinstance(menu, list) else []:
        yield from listed([*one.values()] if isinstance(one, dict) else one)


def test_menu_has_every_page_of_the_docs_once() -> None:
    pages = [p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed(SETTINGS["nav"])) == sorted(["README.md", *pages])


@pytest.mark.slow
def test_site_is_built_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    if not MKDOCS.exists():
        pytest.skip("no .venv-docs; make test makes it")
    build = ("build", "--strict", "--site-dir", tmp_path / "site")
    done = run_in(ROOT, MKDOCS, *build)
    assert done.returncode == 0, done.stderr
    page = "docs/course/01-all-reduce-for-each-parameter/index.html"
    text = (tmp_path / "site" / page).read_text()
    # what is folded is Markdown, too
    assert "<summary>Solution</summary>" in text
    assert "gloo-2 calls a step: more" in re.sub("<[^>]*>", "", text)
    assert "```" not in text
    # signatures and docstrings, without marks of reStructuredText
    api = (tmp_path / "site/docs/reference/api/index.html").read_text()
    assert 'id="minitrain.ddp.barrier"' in api
    assert not re.search(r":(func|class|mod):", api)
    # what pages link to is there, and no other file
    assert (tmp_path / "site/minitrain/comm/shared_memory.py").is_file()
    assert not (tmp_path / "site/minitrain/comm/ring.py").exists()
    home = (tmp_path / "site/index.html").read_text()
    for html in (text, home):
        tags = re.findall(r"<(?:script|link|img)\b[^>]*>", html)
        assert [tag for tag in tags if re.search(r'="(https?:)?//', tag)] == []


SOURCES = [
    path
    for pattern in ("minitrain/**/*.[pm][yd]", "stages/*", "launch/**/*", "Makefile")
    for path in sorted(ROOT.glob(pattern))
    if path.is_file() and path.suffix != ".pyc"
]


def test_lines_of_the_troubleshooting_are_those_of_the_code() -> None:
    """Quoted lines; those of other programs are followed by their name."""
    page = (ROOT / "docs/troubleshooting.md").read_text()
    cells = re.findall(r"^\| ([^|]+) \|", page, re.MULTILINE)
    of_ours = re.compile(r'"([^"]+)"(?! \((?:DVC|pip|Linux)\))')
    quoted = [line for cell in cells for line in of_ours.findall(cell)]
    assert len(quoted) > 12
    code = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES)
    assert [line for line in quoted if line not in code] == []


def test_workflow_runs_jobs_that_exist_with_the_promised_python() -> None:
    job = load_yaml(ROOT / ".github/workflows/ci.yml")["jobs"]["test"]
    matrix = job["strategy"]["matrix"]
    assert matrix["python"] == [PROJECT["requires-python"].removeprefix(">=")]
    script = (ROOT / ".ci/run").read_text()
    assert [name for name in matrix["job"] if f"\n  {name})" not in script] == []


def test_what_the_library_imports_is_required() -> None:
    trees = [ast.parse(path.read_text()) for path in ROOT.glob("minitrain/**/*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = [n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)]
    names += [a.name for n in nodes if isinstance(n, ast.Import) for a in n.names]
    imported = {name.partition(".")[0] for name in names}
    # pydantic's own second half
    others = imported - sys.stdlib_module_names - {"minitrain", "pydantic_core"}
    # a callback needs the library of its Trainer
    others -= {"lightning", "pytorch_lightning", "transformers"}
    assert {"torch", "ruamel", "tqdm"} <= others
    homes = importlib.metadata.packages_distributions()
    # without the versions
    asked = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["lab"]]
    required = {canonicalize_name(re.split("[<>=!~ ]", one)[0]) for one in asked}
    for name in others:
        assert required & {*map(canonicalize_name, homes.get(name, []))}, name
