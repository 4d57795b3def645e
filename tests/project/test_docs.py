"""Docs and params.yaml match the code: numbers, links, names, commands.

Words are checked by reading; pages are typed by test_tutorial.py and in tests/course.
"""

import json
import re
import shlex
from functools import cache
from itertools import pairwise
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from pages import blocks, edit, pages_of, without_fences
from project import PARAMS_FILE, ROOT, load_yaml, run_in

import minitrain
from minitrain.analysis.verdicts import VERDICTS
from minitrain.cli.explain import in_words, walk
from minitrain.cli.main import make_parser
from minitrain.core.params import Params, load_params
from minitrain.report.checks import RUNGS
from minitrain.sync.catalog import STRATEGIES
from minitrain.sync.guarantees import GUARANTEES, Guarantees

PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *pages_of("docs", "launch")]
TEXT = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
STAGES: dict[str, dict[str, Any]] = load_yaml(ROOT / "dvc.yaml")["stages"]
PARAMS = load_yaml(PARAMS_FILE)
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[0].split()
KEYS = {f"{section}.{key}" for section in PARAMS for key in PARAMS[section]}


def require_marked(page: str, name: str, block: str) -> None:
    """Fail with what to paste, unless ``block`` stands between those comments."""
    pattern = f"<!-- {name} -->\n(.*?)<!-- /{name} -->"
    if re.findall(pattern, TEXT[page], re.DOTALL) != [block]:
        between = f"between <!-- {name} --> and <!-- /{name} -->"
        pytest.fail(f"{page}, {between}, paste:\n\n{block}", pytrace=False)


def table(columns: list[str], rows: list[str]) -> str:
    head = f"| {' | '.join(columns)} |"
    return "\n".join([head, "|---" * len(columns) + "|", *rows]) + "\n"


def test_walk_and_guarantees_in_the_docs_are_those_of_the_code() -> None:
    expected = f"```text\n$ minitrain explain\n{in_words(walk())}\n```\n"
    require_marked("docs/tutorial.md", "explain", expected)
    rows = [
        f"| `{name}` | {one.adds_in} | {needs(one)} |"
        for name, one in GUARANTEES.items()
    ]
    columns = ["`train.sync`", "adds in", "needs"]
    require_marked("docs/strategies.md", "guarantees", table(columns, rows))


def needs(one: Guarantees) -> str:
    found = {
        "one host": one.on_one_host,
        "the CPU": one.on_cpu,
        "`train.logical_shards`": one.logical_shards,
        "float32 or bf16": bool(one.fp16),
    }
    return ", ".join(name for name, is_needed in found.items() if is_needed) or "-"


# links are checked on all pages
LINKED = [*PAGES, *pages_of("examples", "metrics", "studies")]


def dead_links(page: Path) -> list[str]:
    """The relative links of ``page`` that lead nowhere, or to no heading."""
    dead = []
    text = without_fences(page.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("http:", "https:")):
            continue
        name, _, section = link.partition("#")
        path = page.parent / name if name else page
        if not path.exists() or (section and section not in anchors(path)):
            dead.append(link)
    return dead


@cache
def anchors(path: Path) -> set[str]:
    """How headings are linked to on GitHub."""
    text = without_fences(path.read_text(encoding="utf-8"))
    found = re.findall(r"^#+ (.+)$", text.lower(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one).replace(" ", "-") for one in found}


def test_links_lead_somewhere() -> None:
    dead = {page: dead_links(ROOT / page) for page in LINKED}
    assert {page: links for page, links in dead.items() if links} == {}


def written_by(stage: dict[str, Any]) -> list[str]:
    kinds = ("outs", "metrics", "plots")
    outs = [out for kind in kinds for out in stage.get(kind, [])]
    return [out if isinstance(out, str) else next(iter(out)) for out in outs]


def test_names_of_the_library_and_keys_of_parameters_exist() -> None:
    sections = "|".join(PARAMS)
    # CHANGELOG.md has removed ones
    for page in {*PAGES} - {"CHANGELOG.md"}:
        for dotted in set(re.findall(r"\bminitrain(?:\.[A-Za-z]\w*)+", TEXT[page])):
            # raises AttributeError, or ImportError
            resolve_name(dotted)
        found = set(re.findall(rf"`((?:{sections})\.[a-z]\w*)`", TEXT[page]))
        files = {name for name in found if name.endswith(("_path", ".py", ".md"))}
        assert not found - KEYS - files, f"{page}: {found - KEYS - files}"


def typed(text: str) -> list[str]:
    found = [line for block in blocks(text) for line in block.typed]
    return [line.removeprefix(".venv/bin/") for line in found]


def commands(page: str) -> list[str]:
    """Those of its blocks, and backticks that start with a tool of ours."""
    inline = re.findall(r"`((?:\w+=\S+ )?(?:make|dvc)(?: [^`]*)?)`", TEXT[page])
    return [*typed(TEXT[page]), *inline]


def test_commands_name_targets_stages_and_parameters() -> None:
    studies = {f"study-{path.parent.name}" for path in ROOT.glob("studies/*/dvc.yaml")}
    known = {*TARGETS, *studies, ".venv/installed"}
    for page in PAGES:
        for command in commands(page):
            words = command.split()
            if words[0] == "make":
                assert {w for w in words[1:] if "=" not in w} <= known, (
                    f"{page}: {command}"
                )
            if words[:2] == ["dvc", "repro"]:
                stages = {w.partition("@")[0] for w in words[2:] if w[0] != "-"}
                assert stages <= STAGES.keys(), f"{page}: {command}"
            for key in re.findall(r"-S '?([a-z_]+\.\w+)=", command):
                assert key in KEYS, f"{page}: {command}"
        for stage in re.findall(r"`(\w+)@\w+`", TEXT[page]):
            assert "matrix" in STAGES[stage], f"{page}: {stage}"


def test_commands_of_minitrain_are_those_that_it_takes() -> None:
    lines = [line for text in TEXT.values() for line in typed(text)]
    ours = [line for line in lines if line.startswith("minitrain ")]
    assert len(ours) > 20
    for line in ours:
        # what comes after is the user's own command
        words = shlex.split(line.partition("|")[0].partition(" -- ")[0])
        options, unknown = make_parser().parse_known_args(words[1:])
        assert "answer" in options, line
        assert unknown == [], line


def first_column(page: str, heading: str) -> list[str]:
    section = TEXT[page].partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]+`) \|", section, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def test_reference_names_stages_exports_verdicts_rungs_and_outputs() -> None:
    assert first_column("docs/reference/commands.md", "Stages") == list(STAGES)
    assert first_column("docs/reference/api.md", "`minitrain`") == minitrain.__all__
    assert first_column("docs/verdicts.md", "Verdicts") == [*VERDICTS]
    assert sorted(first_column("docs/verdicts.md", "Rungs")) == sorted(RUNGS)
    paths = [p.rstrip("/") for p in first_column("docs/reference/files.md", "Files")]
    for out in (out for stage in STAGES.values() for out in written_by(stage)):
        # W is a number of processes; runs with NCCL have the files of runs with gloo
        named = re.sub(r"\$\{.*?\}", "W", out).replace("nccl", "gloo")
        assert any(f"{path}/".startswith(f"{named}/") for path in paths), out


def test_lines_that_pages_change_are_there() -> None:
    diffs = [(p, b) for p in TEXT for b in blocks(TEXT[p]) if b.language == "diff"]
    assert len(diffs) > 1
    for page, found in ((page, edit(one)) for page, one in diffs):
        assert (ROOT / found.file).read_text().count(found.old) == 1, page
        assert f"git checkout {found.file}" in TEXT[page], page


def test_version_is_the_same_everywhere() -> None:
    citation = load_yaml(ROOT / "CITATION.cff")
    assert citation["version"] == minitrain.__version__
    newest = re.findall(r"^## (\S+) - (\S+)$", TEXT["CHANGELOG.md"], re.MULTILINE)[0]
    assert newest == (minitrain.__version__, citation["date-released"])


def test_every_strategy_is_documented_and_the_one_of_the_page_is_tested() -> None:
    tested = (ROOT / "tests/support/toy_strategy.py").read_text()
    require_marked("docs/strategies.md", "toy", f"```python\n{tested}```\n")
    text = TEXT["docs/strategies.md"]
    assert [name for name in STRATEGIES if f"`{name}`" not in text] == []


def test_python_of_the_concepts_prints_what_stands_below_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = blocks(TEXT["docs/concepts.md"])
    pairs = [(a, b) for a, b in pairwise(found) if a.language == "python"]
    assert len(pairs) == 2
    for code, expected in pairs:
        exec(code.text, {})
        assert capsys.readouterr().out == expected.text


@pytest.mark.slow
def test_verdicts_of_the_strategies_page_are_those_of_its_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = TEXT["docs/strategies.md"].split("<!-- /toy -->")[1]
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    (expected,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    # as a script, whose functions reach the ranks by value
    exec(code, {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert printed.endswith(f"\n{expected}")
    assert "\nproven: " in printed


def test_the_page_on_gpus_states_what_its_file_holds() -> None:
    summary = json.loads((ROOT / "docs/gpu/summary.json").read_text())
    row = re.compile(r"^\| (\w+-\d) \| (\w+) \| (\S+) \| (\S+) \| (\S+) ms \|$", re.M)
    rows = {name: cells for name, *cells in row.findall(TEXT["docs/gpu.md"])}
    assert rows == {
        name: [
            run["verdict"],
            str(run["loss"]),
            f"{apart:.1e}" if (apart := run["max_abs_diff"]) else "-",
            f"{run['step_p50_ms']:.1f}",
        ]
        for name, run in summary.items()
        if isinstance(run, dict)
    }


# no other test reads the file of the user
OWN = ROOT / "params.yaml"


def test_own_parameters_have_the_keys_of_the_schema_and_a_comment_each() -> None:
    expected = {n: [*f.annotation.model_fields] for n, f in Params.model_fields.items()}
    for file in (OWN, PARAMS_FILE):
        load_params(file)
        stated = {name: [*section] for name, section in load_yaml(file).items()}
        assert (stated, [*stated]) == (expected, [*expected])
    lines = OWN.read_text(encoding="utf-8").splitlines()
    keys = [i for i, line in enumerate(lines) if re.match(r"  \w.*:", line)]
    assert len(keys) == sum(map(len, expected.values()))
    assert [lines[i] for i in keys if not lines[i - 1].startswith("  # ")] == []


SYMPTOMS = [p for p in pages_of("docs/symptoms") if not p.endswith("README.md")]
# not times, nor which of their words noise decides
KEY = re.compile(
    r"minitrain: (note|alarm|see)|alarm|(same|equal|different|see)\b|  rank \d: "
    r"|rank \d is"
)


def shape(line: str) -> str:
    """``line`` with every number as ``#``."""
    return re.sub(r"\d[\d,]*(\.\d+)?(e-?\d+)?", "#", line)


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", SYMPTOMS)
def test_output_of_a_symptom_is_the_one_on_its_page(page: str, tmp_path: Path) -> None:
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    (block,) = (b for b in blocks(TEXT[page]) if b.language == "text")
    pieces = re.split(r"^\$ (.+)\n", block.text, flags=re.MULTILINE)[1:]
    assert KEY.search(block.text)
    for command, shown in zip(pieces[::2], pieces[1::2], strict=True):
        done = run_in(tmp_path, *command.split(), TMPDIR=str(tmp_path))
        output = done.stdout + done.stderr
        found = {*map(shape, output.splitlines())}
        expected = [shape(line) for line in shown.splitlines() if KEY.match(line)]
        assert [line for line in expected if line not in found] == [], output
