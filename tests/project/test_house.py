"""The promises about the house: sizes, floors, what may know what."""

import ast
from pathlib import Path
from typing import Any

import pytest
from imports import direct_imports
from project import ROOT
from ruamel.yaml import YAML

LIBRARY = sorted((ROOT / "minitrain").rglob("*.py"))
STAGES = sorted([*(ROOT / "stages").glob("*.py"), *(ROOT / "studies").rglob("*.py")])

# a package may import from itself and from these
BELOW_SYNC = {"core", "data", "model", "distributed"}
BELOW_TRAIN = {*BELOW_SYNC, "sync"}
BELOW_PROOF = {*BELOW_TRAIN, "train"}
MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "grammar": {"core"},
    "data": {"core"},
    "model": {"core", "data"},
    "distributed": {"core"},
    "sync": BELOW_SYNC,
    "train": BELOW_TRAIN,
    "proof": {*BELOW_PROOF, "analysis"},
    "bench": BELOW_PROOF,
    "diff": {*BELOW_PROOF, "proof"},
    "testing": {*BELOW_PROOF, "proof", "diff", "analysis"},
    "analysis": {"core"},
    "report": {"core", "analysis"},
    "cli": {"core", "data", "distributed", "proof", "diff", "report"},
}
# doors: they name what lies in packages, and nothing in a package imports them
DOORS = {"__init__.py", "__main__.py", "ddp.py"}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


IN_PACKAGES = [p for p in map(relative, LIBRARY) if Path(p).parts[1] not in DOORS]


@pytest.mark.parametrize("path", LIBRARY, ids=relative)
def test_library_files_have_at_most_300_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 300


@pytest.mark.parametrize("path", STAGES, ids=relative)
def test_stage_scripts_have_at_most_90_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 90


@pytest.mark.parametrize("path", STAGES, ids=relative)
def test_scripts_end_in_one_line_where_a_user_is_wrong(path: Path) -> None:
    """A traceback is for a bug: see minitrain.core.errors.run_stage."""
    text = path.read_text()
    # a process of its own, whose parent says it
    if "__main__" in text and path.name != "train_memory.py":
        assert "    run_stage(main)\n" in text


@pytest.mark.parametrize("path", [*LIBRARY, *STAGES], ids=relative)
def test_functions_have_at_most_50_lines(path: Path) -> None:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, functions):
            assert node.end_lineno - node.lineno < 50, f"{path}: {node.name}"


@pytest.mark.parametrize("path", LIBRARY, ids=relative)
def test_library_is_documented_and_knows_no_stage_and_no_path(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "a module says what it does"
    strings = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)}
    paths = {s for s in strings if isinstance(s, str)}
    assert not {s for s in paths if s.startswith(("data/", "metrics/"))}
    assert "import stages" not in text
    assert "from stages" not in text
    assert "sys.path.insert" not in text
    assert "sys.path.append" not in text


@pytest.mark.parametrize("path", LIBRARY, ids=relative)
def test_public_names_have_docstrings(path: Path) -> None:
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{path}: {node.name}"


def test_every_package_has_its_place() -> None:
    inside = {Path(relative(p)).parts[1] for p in LIBRARY}
    assert inside == {*MAY_IMPORT, *DOORS}
    # and what says that the library is typed
    assert len(inside | {"py.typed"}) <= 18


@pytest.mark.parametrize("path", IN_PACKAGES)
def test_no_package_imports_what_stands_above_it(path: str) -> None:
    home = Path(path).parts[1]
    for imported in direct_imports(ROOT, Path(path)) - {"minitrain/__init__.py"}:
        assert Path(imported).parts[1] in {home, *MAY_IMPORT[home]}, imported


def test_no_package_imports_itself_in_a_circle() -> None:
    order: list[str] = []
    waiting = {home: set(below) for home, below in MAY_IMPORT.items()}
    while waiting:
        ready = [home for home, below in waiting.items() if below <= {*order}]
        assert ready, f"in a circle: {sorted(waiting)}"
        order += ready
        for home in ready:
            del waiting[home]


@pytest.mark.parametrize("path", IN_PACKAGES)
def test_no_file_imports_itself_in_a_circle(path: str) -> None:
    above = {path}
    waiting = {Path(path)}
    while waiting:
        found = direct_imports(ROOT, waiting.pop())
        assert path not in found
        waiting |= {Path(one) for one in found - above}
        above |= found


def test_packages_import_without_torch() -> None:
    """Stages of text and tables start in a fraction of a second."""
    import subprocess
    import sys

    modules = "minitrain.grammar, minitrain.data.shards, minitrain.report.page"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "False\n", done.stderr


def tracked_by(stage: dict[str, Any]) -> set[str]:
    """Keys and sections of params.yaml that ``stage`` follows."""
    listed = stage.get("params", [])
    files = [one for one in listed if not isinstance(one, str)]
    keys = {key for file in files for key in file["params.yaml"]}
    return keys | {one for one in listed if isinstance(one, str)}


def test_every_parameter_is_tracked_by_a_stage() -> None:
    """launch.timeout_s alone is not: it changes no result."""
    yaml = YAML(typ="safe")
    params = yaml.load((ROOT / "params.yaml").read_text())
    stages = yaml.load((ROOT / "dvc.yaml").read_text())["stages"].values()
    tracked = {key for stage in stages for key in tracked_by(stage)}
    for section, values in params.items():
        for key in values:
            name = f"{section}.{key}"
            untracked = section not in tracked and name not in tracked
            assert untracked == (name == "launch.timeout_s"), name
    for key in tracked:
        section, _, name = key.partition(".")
        assert section in params, key
        assert not name or name in params[section], key
