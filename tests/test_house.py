"""The promises about the house: sizes, floors, what may know what."""

import ast
from pathlib import Path

import pytest
from closure import _imports
from project import ROOT
from ruamel.yaml import YAML

LIBRARY = sorted((ROOT / "minitrain").rglob("*.py"))
STAGES = sorted([*(ROOT / "stages").glob("*.py"), *(ROOT / "studies").rglob("*.py")])

# a module may import from its own floor or from below
FLOORS = [
    {"errors", "files", "load", "params", "progress", "provenance", "ring", "tree"}
    | {"randomness", "buffers", "schema", "studies", "made_by"},
    {"corpus", "data", "order", "batches", "cut", "grammar", "model", "factory"},
    {"ddp", "links", "shared_memory", "sync", "launcher", "launched_rank", "torchrun"},
    {"clock", "hashes", "precision", "traffic", "training", "replay", "run", "arms"}
    | {"probe"}
    | {"turns"},
    {"ulp", "equivalence", "tolerances", "promises", "one_process", "account"}
    | {"baseline", "states", "compare", "compare_runs", "collectives", "doctor", "walk"}
    | {"locator", "trial", "check", "zoo", "sweep", "sweep_rank", "evidence"}
    | {"ladder", "reference", "verdicts", "witness", "keeper"},
    {"report", "cli"},
]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def floor_of(path: str) -> int:
    room = Path(path).parts[1].removesuffix(".py")
    return next(level for level, rooms in enumerate(FLOORS) if room in rooms)


@pytest.mark.parametrize("path", LIBRARY, ids=relative)
def test_library_files_have_at_most_300_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 300


@pytest.mark.parametrize("path", STAGES, ids=relative)
def test_stage_scripts_have_at_most_90_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 90


@pytest.mark.parametrize("path", STAGES, ids=relative)
def test_scripts_end_in_one_line_where_a_user_is_wrong(path: Path) -> None:
    """A traceback is for a bug: see minitrain.errors.run_stage."""
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


def test_floors_name_every_room() -> None:
    rooms = {Path(relative(p)).parts[1].removesuffix(".py") for p in LIBRARY}
    assert rooms - {"__init__"} == set().union(*FLOORS)


@pytest.mark.parametrize(
    "path", [p for p in map(relative, LIBRARY) if p != "minitrain/__init__.py"]
)
def test_no_floor_imports_a_higher_one(path: str) -> None:
    for imported in _imports(ROOT, Path(path)) - {"minitrain/__init__.py"}:
        assert floor_of(imported) <= floor_of(path), f"{path} imports {imported}"


def test_packages_import_without_torch() -> None:
    """Stages of text and tables start in a fraction of a second."""
    import subprocess
    import sys

    modules = "minitrain.grammar, minitrain.data, minitrain.report.page"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "False\n", done.stderr


def test_every_parameter_is_tracked_by_a_stage() -> None:
    """launch.timeout_s alone is not: it changes no result."""
    yaml = YAML(typ="safe")
    params = yaml.load((ROOT / "params.yaml").read_text())
    stages = yaml.load((ROOT / "dvc.yaml").read_text())["stages"].values()
    tracked = {key for stage in stages for key in stage.get("params", [])}
    for section, values in params.items():
        for key in values:
            name = f"{section}.{key}"
            untracked = section not in tracked and name not in tracked
            assert untracked == (name == "launch.timeout_s"), name
    for key in tracked:
        section, _, name = key.partition(".")
        assert section in params, key
        assert not name or name in params[section], key
