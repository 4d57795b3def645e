"""The pipeline as DVC runs it: dependencies, reruns, reproducibility."""

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import psutil
import pytest
from forks import PIPELINE, run_stages, stages_in_forks
from pages import reruns
from project import ROOT, copy_project, environment, run_dvc, run_python, start_dvc
from test_docs import PARAMS, STAGES

from minitrain.core.files import read_json
from studies.import_graph import as_deps, imported_by

# DVC starts a process for every stage, and looks at every file for every question
pytestmark = pytest.mark.timeout(600)


def test_deps_are_what_the_script_imports() -> None:
    """DVC does not follow imports: dvc.yaml names all packages, and no others."""
    for name, stage in STAGES.items():
        script = re.search(r"-m stages\.(\w+)", stage["cmd"])[1]
        code = {d for d in stage["deps"] if d.startswith(("stages/", "minitrain/"))}
        assert code == as_deps(imported_by(ROOT, Path(f"stages/{script}.py"))), name
        assert stage["desc"], name
        assert re.fullmatch(r"exec stages/python -m [\w ${}.-]*", stage["cmd"])


DETERMINISTIC = [
    *("data/corpus.jsonl", "data/shards", "data/runs/gloo-1/states"),
    *("data/runs/gloo-2/states", "data/runs/gloo-1/*.csv", "data/runs/gloo-2/*.csv"),
    *(
        "data/runs/gloo-1/hashes.jsonl",
        "data/runs/gloo-2/hashes.jsonl",
        "data/runs/gloo-2/sampled.pt",
        "data/runs/replay-*",
    ),
    *("data/evidence", "metrics/equivalence.json", "metrics/losses.csv"),
]


@pytest.fixture(scope="module")
def twins(stages_by_fork: str, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two copies of the project, built at the same time with stages in forks, the first
    by `dvc repro`.
    """
    make = tmp_path_factory.mktemp
    folders = [copy_project(make(name)) for name in ("first", "second")]
    stages_in_forks(folders[0], stages_by_fork)
    process = start_dvc(folders[0], "repro")
    stages = [*PIPELINE, ["timing"], ["baseline"], ["report"]]
    outcome = run_stages(stages_by_fork, folders[1], stages)
    assert outcome.code == 0, outcome.output
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return folders


def listening(pid: int) -> set[str]:
    """Addresses at which process ``pid`` and all that it started listen."""
    found = set()
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for one in [process, *process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                sockets = one.net_connections("tcp")
                found |= {s.laddr.ip for s in sockets if s.status == "LISTEN"}
    return found


@pytest.mark.pipeline
def test_nothing_listens_beyond_loopback(twins: list[Path], tmp_path: Path) -> None:
    """Torch's TCP store listens on every interface, and who writes into it runs code
    here: a client in another network namespace did.
    """
    folder = Path(shutil.copytree(twins[0], tmp_path / "copy", symlinks=True))
    addresses: set[str] = set()
    for stage in ("train --backend gloo --world-size 2", "baseline"):
        command = [sys.executable, "-m", *f"stages.{stage}".split()]
        process = subprocess.Popen(command, cwd=folder, env=environment())
        while process.poll() is None:
            addresses |= listening(process.pid)
            time.sleep(0.3)
        assert process.returncode == 0
    origin = read_json(folder / "data/runs/gloo-2/provenance.json")
    assert origin["launcher"] == "torchrun"
    # gloo was seen, so others would have been
    assert addresses
    assert [name for name in addresses if not ip_address(name).is_loopback] == []


def files_at(folder: Path, pattern: str) -> dict[str, bytes]:
    """Files of that name, or below folders of that name."""
    files = {p for at in folder.glob(pattern) for p in (at, *at.rglob("*"))}
    return {str(p.relative_to(folder)): p.read_bytes() for p in files if p.is_file()}


@pytest.mark.pipeline
def test_two_copies_at_once_give_the_same_bytes(twins: list[Path]) -> None:
    for pattern in DETERMINISTIC:
        first, second = (files_at(folder, pattern) for folder in twins)
        assert first, pattern
        assert first == second, pattern


@pytest.mark.pipeline
def test_second_repro_runs_nothing(twins: list[Path]) -> None:
    """README's table, for one, is the committer's: `minitrain report --readme`."""
    folder = twins[0]
    assert read_json(folder / "metrics/manifest.json")["byte_equivalent"] is True
    assert (folder / "README.md").read_bytes() == (ROOT / "README.md").read_bytes()
    code, output = run_dvc(folder, "repro")
    assert code == 0
    assert "Running stage" not in output
    assert "up to date" in output
    # the end of make, of what the stages really wrote
    done = run_python("-m", "minitrain", "summary", folder=folder)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_table_of_what_reruns_is_that_of_the_pipeline() -> None:
    keys = {f"{section}.{key}" for section in PARAMS for key in PARAMS[section]}
    sources = {dep for stage in STAGES.values() for dep in stage["deps"]}
    code = ("stages/", "minitrain/", "params.yaml", "requirements.lock")
    sources = {source for source in sources if source.startswith(code)}
    assert set(reruns()) == keys | sources | {"data/verbs.csv"}
    wrong = {}
    of_stages = {name: {*watched(stage)} for name, stage in STAGES.items()}
    for key, listed in reruns().items():
        touched = {name for name, found in of_stages.items() if key in found}
        if touched != {*listed}:
            wrong[key] = sorted(touched)
    assert wrong == {}
    # a model's neighbors, which no row of the table names
    trained = {*reruns()["model.deps"]} - {"check", "report"}
    for dep in ("${model.file}", "${model.deps}"):
        assert {n for n, stage in STAGES.items() if dep in stage["deps"]} == trained


def watched(stage: dict[str, Any]) -> Iterator[str]:
    """The dependencies of a stage, a section of params.yaml by each of its keys."""
    params = PARAMS
    listed = [*stage.get("params", [])]
    for dep in stage["deps"]:
        section, _, key = dep.strip("${}").partition(".")
        yield params[section][key] if dep.startswith("${") else dep
        listed += params if dep == "params.yaml" else []
    for one in listed:
        for name in one["params.yaml"] if isinstance(one, dict) else [one]:
            yield from [f"{name}.{key}" for key in params.get(name, [])] or [name]


@pytest.mark.pipeline
def test_breach_stops_the_pipeline_and_is_named(
    twins: list[Path], tmp_path: Path
) -> None:
    """Nothing shows the old success; the next good run clears it."""
    folder = Path(shutil.copytree(twins[0], tmp_path / "copy", symlinks=True))
    success = shown(folder)
    of_success = {"summary.json": "max_abs_diff", "report.md": "2 processes, DDP"}
    assert all(text in success[place] for place, text in of_success.items())
    evidence = folder / "data/evidence/gloo-2/evidence.json"
    good = evidence.read_bytes()
    damaged = json.loads(good)
    damaged["rungs"]["ranks"] |= {"verdict": "breach", "detail": "tensor x differs"}
    evidence.unlink()
    evidence.write_text(json.dumps(damaged))
    code, output = run_dvc(folder, "repro", "--single-item", "equivalence")
    assert code != 0
    line = "gloo-2: ranks: tensor x differs"
    assert f"error: equivalence: {line}" in output
    assert "Traceback" not in output
    after = shown(folder)
    for place in ("summary.json", "report.md", "report.html"):
        assert line in after[place], place
    assert not [text for place, text in of_success.items() if text in after[place]]
    assert not (folder / "metrics/manifest.json").exists()
    assert after["picture"] != success["picture"]
    evidence.write_bytes(good)
    code, output = run_dvc(folder, "repro")
    assert code == 0, output
    assert shown(folder) == success


def shown(folder: Path) -> dict[str, Any]:
    texts = {
        # words alone: run names have tags of their own
        name: re.sub("<[^>]+>", "", (folder / "metrics" / name).read_text())
        for name in ("report.md", "report.html", "summary.json")
    }
    return {**texts, "picture": (folder / "metrics/scaling.png").read_bytes()}
