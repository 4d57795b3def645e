"""Committed results match the texts about them and the code that made them.

Run on CI, and by `pytest -m published`: with a changed parameter or after `make` the
results differ.
"""

import hashlib
import json
import re
from functools import cache
from hashlib import sha256
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from diagrams import measured_pictures
from held_out import errors
from least_squares import nonnegative
from project import ROOT, load_yaml
from test_docs import require_marked, table
from zoo_digest import digest

from minitrain.core.code_lock import lock_text
from minitrain.report.published import result_block
from studies import label
from studies.results import made_by_pipeline, measured_in

pytestmark = pytest.mark.published
labels = cache(label.labels)

STUDIES = sorted(file.parent for file in ROOT.glob("studies/*/dvc.yaml"))
PLACES = [ROOT, *STUDIES]
# the only folders that hold code
CODE = {"minitrain", "stages"}


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_result_in_the_readme_is_that_of_the_metrics() -> None:
    require_marked("README.md", "result", result_block(ROOT / "metrics"))


def test_scale_in_the_docs_is_that_of_the_study() -> None:
    study = json.loads(read("studies/scale/scale.json"))
    sizes = [int(key.partition("_")[0]) for key in study if key.endswith("_sentences")]
    lines = []
    for name, key, unit in (
        ("check, corpus and shard together", "build_and_shard_s", "s"),
        ("memory of corpus", "corpus_above_imports_mb", "MB"),
        ("memory of shard", "shard_above_imports_mb", "MB"),
        ("memory of training", "train_rss_anon_p50_mb", "MB"),
    ):
        cells = [f"{study[f'{size}_sentences'][key]:,.1f} {unit}" for size in sizes]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    columns = ["", *(f"{size:,} sentences" for size in sizes)]
    require_marked("docs/how-to/own-text.md", "scale", table(columns, lines))


def test_cost_of_checkpoints_in_the_docs_is_that_of_the_study() -> None:
    found, _, _ = read("studies/checkpoints/table.md").partition("\n\n| to go")
    require_marked("docs/checkpoints.md", "checkpoints", f"{found}\n")


def test_timeline_in_the_concepts_is_that_of_the_trace() -> None:
    for name, drawn in measured_pictures().items():
        assert f"](pictures/{name})" in read("docs/concepts.md")
        if read(f"docs/pictures/{name}") != drawn:
            line = "run .venv/bin/python docs/pictures/diagrams.py"
            pytest.fail(f"docs/pictures/{name}: {line}", pytrace=False)


def deps_in_lock(folder: Path, script: str) -> dict[str, str]:
    """MD5s of the dependencies of the stage that runs ``script``, by dvc.lock."""
    stages = load_yaml(folder / "dvc.lock")["stages"]
    lock = next(s for s in stages.values() if script in s["cmd"].split())
    return {dep["path"]: dep["md5"] for dep in lock["deps"]}


def test_lock_names_the_code_that_made_the_result() -> None:
    """`dvc commit` over an old result would make it look new."""
    for made in made_by_pipeline(ROOT, json.loads(read("metrics/manifest.json"))):
        md5s = {
            path: md5
            for path, md5 in deps_in_lock(ROOT, f"stages.{made.script.stem}").items()
            if path.endswith(".py")
            or (md5.endswith(".dir") and CODE & {*Path(path).parts})
        }
        lines = [f"{md5s[name]}  {name}\n" for name in sorted(md5s)]
        assert made.code == sha256("".join(lines).encode()).hexdigest(), made.script


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_lock_of_a_study_names_the_code_that_made_the_result(study: Path) -> None:
    for script, origin in measured_in(study).items():
        if code := origin.get("code"):
            content = lock_text(code).encode()
            md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
            assert deps_in_lock(study, script)["code.lock"] == md5, script


@pytest.mark.parametrize("folder", PLACES, ids=lambda folder: folder.name)
def test_readme_says_which_code_made_the_result(folder: Path) -> None:
    text = (folder / "README.md").read_text()
    (shown,) = re.findall("<!-- made-by -->\n(.*?)<!-- /made-by -->", text, re.DOTALL)
    if shown != labels()[folder]:
        line = "run .venv/bin/python -m studies.label"
        pytest.fail(f"{folder}/README.md: {line}", pytrace=False)


def test_zoo_of_the_report_is_that_of_the_study() -> None:
    zoo = json.loads(read("studies/zoo/zoo.json"))
    shown = json.loads(read("metrics/zoo.json"))
    assert shown == digest(zoo)
    bugs = shown["bugs"].values()
    normal = sum(bug["loss"] == "looks right" for bug in bugs)
    assert all(bug["caught_by"] for bug in bugs)
    assert shown["alarms"] == 0
    claim = " ".join(read("README.md").split())
    of_issues = sum("#" in bug["met_in"] for bug in bugs)
    assert f"Of {len(bugs)} bugs that" in claim
    assert f"injects, {of_issues} of them from issues of other projects" in claim
    assert f"{normal} leave a loss curve that looks normal" in claim
    assert f"catch all {len(bugs)}, and raised no alarm in" in claim
    assert f"alarm in {shown['clean_runs']} clean runs" in claim


def test_lines_in_the_docs_are_those_of_the_sweep() -> None:
    sweep = pd.read_csv(ROOT / "studies/collectives/collectives.csv")
    gloo = sweep.query("backend == 'gloo' and world_size == 2")
    rows = []
    for words, least, most in (
        ("4 B to 256 MiB", 4, 2**28),
        ("4 B to 256 KiB", 4, 2**18),
        ("1 MiB to 256 MiB", 2**20, 2**28),
    ):
        own = gloo[gloo["num_bytes"].between(least, most)]
        sizes, times = own["num_bytes"].to_numpy(), own["p50_us"].to_numpy() / 1e6
        # one line: 2 messages, and all bytes once
        columns = np.stack([np.full(len(own), 2.0), sizes], axis=1)
        alpha, beta = nonnegative(columns, times)
        found = errors(list(columns @ [alpha, beta]), list(times))
        off = f"{100 * found.median:.0f} % | {100 * found.worst:.0f} %"
        line = f"{1e6 * alpha:.0f} µs | {1e9 * beta:.2f} ns | {off}"
        rows.append(f"| {words} | {line} |")
    columns_of_page = ["sizes", "seconds a message", "seconds a byte"]
    expected = table([*columns_of_page, "median error", "worst"], rows)
    require_marked("docs/cost-model.md", "lines", expected)
