"""The promises about the house: sizes, floors, what may know what."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from project import ROOT, run_python

from studies.import_graph import direct_imports

LIBRARY = sorted((ROOT / "minitrain").rglob("*.py"))
STAGES = sorted([*(ROOT / "stages").glob("*.py"), *(ROOT / "studies").rglob("*.py")])

# a package may import from itself and from these
BELOW_SYNC = {"core", "data", "model", "comm"}
BELOW_TRAIN = {*BELOW_SYNC, "sync"}
BELOW_PROOF = {*BELOW_TRAIN, "train"}
MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "grammar": {"core"},
    "data": {"core"},
    "model": {"core", "data"},
    "comm": {"core"},
    # starts and watches what is measured, which does not know it
    "harness": {"core", "comm"},
    "sync": BELOW_SYNC,
    "train": BELOW_TRAIN,
    "proof": {*BELOW_PROOF, "analysis"},
    "bench": BELOW_PROOF,
    "recording": {"core", "data", "sync", "comm", "analysis"},
    "compare": {*BELOW_PROOF, "proof", "recording", "analysis"},
    "check": {*BELOW_PROOF, "harness", "proof", "compare", "bench", "analysis"},
    "analysis": {"core"},
    "report": {"core", "data", "analysis"},
    "cli": {"core", "data", "comm", "harness", "sync", "proof"}
    | {"compare", "check", "recording", "report"},
}
EDITS_OF_PATH = ("sys.path.insert", "sys.path.append")
# doors: they name what lies in packages, and nothing in a package imports them
DOORS = {"__init__.py", "__main__.py", "callbacks.py", "ddp.py"}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


IN_PACKAGES = [p for p in map(relative, LIBRARY) if Path(p).parts[1] not in DOORS]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def longer_than(lines: int, paths: list[Path]) -> list[str]:
    return [relative(p) for p in paths if len(p.read_text().splitlines()) > lines]


def test_scripts_are_short_and_end_in_one_line_where_a_user_is_wrong() -> None:
    """A traceback is for a bug: see minitrain.core.errors.run_stage."""
    scripts = [path for path in STAGES if "__main__" in path.read_text()]
    assert longer_than(90, scripts) == []
    without = {p.name for p in scripts if "    run_stage(main)\n" not in p.read_text()}
    # a child process, whose parent reports errors
    assert without == {"train_memory.py"}


def test_library_and_tests_do_not_grow() -> None:
    count = dict.fromkeys(MAY_IMPORT, 0)
    for path in IN_PACKAGES:
        count[Path(path).parts[1]] += len((ROOT / path).read_text().splitlines())
    assert sum(count.values()) <= 25_900
    tests = (ROOT / "tests").rglob("*.py")
    assert sum(len(path.read_text().splitlines()) for path in tests) <= 28_000
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("## How large it is")[2]
    stated = {name: float(n) for name, n in re.findall(r"`(\w+)`\s(\d+\.\d)", text)}
    assert stated.keys() == count.keys()
    assert [
        n for n, lines in count.items() if abs(lines / 1000 - stated[n]) > 0.15
    ] == []


def test_files_have_at_most_400_lines_and_functions_60() -> None:
    assert longer_than(400, [*LIBRARY, *STAGES]) == []
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        f"{relative(path)}: {node.name}"
        for path in [*LIBRARY, *STAGES]
        for node in ast.walk(tree_of(path))
        if isinstance(node, functions) and node.end_lineno - node.lineno >= 60
    ]
    assert found == []


def test_library_is_documented_and_knows_no_stage_and_no_path() -> None:
    for path in LIBRARY:
        text, tree, name = path.read_text(), tree_of(path), relative(path)
        assert ast.get_docstring(tree), f"{name}: no docstring"
        strings = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)}
        paths = {s for s in strings if isinstance(s, str)}
        assert not {s for s in paths if s.startswith(("data/", "metrics/"))}, name
        for unwanted in ("import stages", "from stages", *EDITS_OF_PATH):
            assert unwanted not in text, f"{name}: {unwanted}"
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{name}: {node.name}"


def texts_in(node: ast.AST) -> Iterator[str]:
    for one in ast.walk(node):
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value
        elif isinstance(one, ast.Name | ast.Attribute):
            yield one.id if isinstance(one, ast.Name) else one.attr


def test_what_is_compared_is_no_sentence() -> None:
    """Verdicts are compared, and a message of Python, but no text of minitrain."""
    allowed = {"can't start new thread", "proven in eval mode"}
    allowed |= {"same computation within rounding"}

    def is_prose(node: ast.expr | str) -> bool:
        text = node.value if isinstance(node, ast.Constant) else node
        # an underscore is of a list of names
        text = text.strip() if isinstance(text, str) and "_" not in text else ""
        return text.count(" ") > 1 and text not in allowed

    trees = {path: tree_of(path) for path in [*LIBRARY, *STAGES]}
    trees = {path: tree for path, tree in trees.items() if "studies" not in path.parts}
    # constants that hold prose, by module
    prose = {
        relative(path).removesuffix(".py").replace("/", "."): {
            ast.unparse(node.targets[0])
            for node in tree.body
            if isinstance(node, ast.Assign) and is_prose(node.value)
        }
        for path, tree in trees.items()
    }
    found = []
    for path, tree in trees.items():
        here = prose[relative(path).removesuffix(".py").replace("/", ".")]
        here = {"detail", "rests_on", *here}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                here |= prose.get(node.module, set()) & {n.name for n in node.names}
        for node in ast.walk(tree):
            texts = [*texts_in(node)] if isinstance(node, ast.Compare) else []
            if any(text in here or is_prose(text) for text in texts):
                found.append(f"{relative(path)}: {ast.unparse(node)}")
    assert found == []


def test_every_package_has_its_place_and_imports_nothing_above_it() -> None:
    inside = {Path(relative(p)).parts[1] for p in LIBRARY}
    assert inside == {*MAY_IMPORT, *DOORS}
    for path in IN_PACKAGES:
        home = Path(path).parts[1]
        for imported in direct_imports(ROOT, Path(path)) - {"minitrain/__init__.py"}:
            allowed = {home, *MAY_IMPORT[home]}
            assert Path(imported).parts[1] in allowed, f"{path}: {imported}"


def test_no_package_and_no_file_imports_itself_in_a_circle() -> None:
    imports = {path: direct_imports(ROOT, Path(path)) for path in IN_PACKAGES}
    for graph in (MAY_IMPORT, imports):
        # raises CycleError
        TopologicalSorter(graph).prepare()


def test_packages_import_and_guarantees_are_known_without_torch() -> None:
    """Stages of text and tables start in a fraction of a second."""
    code = (
        "import sys, minitrain.grammar, minitrain.data.shards;"
        "import stages.report;"
        "from minitrain.sync.catalog import guarantees_of, STRATEGIES;"
        "print([guarantees_of(name).promises for name in STRATEGIES] and"
        " 'torch' in sys.modules)"
    )
    done = run_python("-c", code)
    assert done.stdout == "False\n", done.stderr


def test_what_torch_does_not_document_is_used_in_one_file() -> None:
    private = re.compile(
        r"torch\._[A-Za-z]|\b_get_ddp_logging_data|\._sync_params|\._version\b"
    )
    found = {relative(p) for p in LIBRARY if private.search(p.read_text())}
    assert found == {"minitrain/comm/torch_private.py"}
