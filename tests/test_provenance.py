"""Where a measurement was made, and that only one machine's are compared."""

import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from one_line import the_line

from minitrain import provenance as module
from minitrain.errors import UserError
from minitrain.provenance import (
    installed_torch,
    machine,
    measured_where,
    peak_memory_mb,
    provenance,
    require_one_machine,
    require_torch,
)

BUILDS = ["2.13.0", "2.13.0+cpu", "2.13.0+cu130"]


def install(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Let this torch be the installed one."""
    monkeypatch.setattr(module, "installed_torch", lambda: version)


@pytest.mark.parametrize("build", BUILDS)
def test_any_build_of_the_release_will_do(
    monkeypatch: pytest.MonkeyPatch, build: str
) -> None:
    install(monkeypatch, build)
    require_torch("2.13.0")


@pytest.mark.parametrize("build", ["2.12.0", "2.13.1+cpu", "2.13.0a0", "12.13.0"])
def test_another_release_is_refused(
    monkeypatch: pytest.MonkeyPatch, build: str
) -> None:
    install(monkeypatch, build)
    with pytest.raises(UserError) as raised:
        require_torch("2.13.0")
    assert the_line(raised) == (
        "params.yaml: environment.torch = '2.13.0': must be the release that is "
        f"installed, {build.split('+')[0]!r}"
    )


def test_installed_torch_is_the_one_that_is_imported() -> None:
    import torch

    assert installed_torch().split("+")[0] == torch.__version__.split("+")[0]
    require_torch(installed_torch().split("+")[0])


def test_machine() -> None:
    found = machine()
    keys = ["cpu", "gpu", "cores", "memory_gib", "kernel", "python", "torch"]
    assert list(found) == keys
    assert found["gpu"] is None
    assert found["cpu"]
    assert found["cores"] >= 1
    assert found["memory_gib"] >= 1
    assert found["torch"] == installed_torch()
    assert machine("Example GPU") == found | {"gpu": "Example GPU"}


def test_provenance() -> None:
    found = provenance("Example GPU")
    assert found["machine"] == machine("Example GPU")
    made = datetime.fromisoformat(found["measured_at"])
    assert timedelta() <= datetime.now(UTC) - made < timedelta(seconds=60)


def test_where_in_words() -> None:
    here: dict[str, Any] = {"gpu": None, "cpu": "Abacus", "cores": 2, "torch": "2.13.0"}
    origin = {"measured_at": "2026-11-21T10:00:00", "machine": here}
    words = "Measured on 2026-11-21: Abacus, 2 cores, torch 2.13.0."
    assert measured_where(origin) == words
    here["gpu"] = "Counter"
    assert measured_where(origin) == words.replace("Abacus, 2 cores", "Counter")


def test_commit_of_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = provenance()["git_commit"]
    # None in a source archive
    assert commit is None or re.fullmatch(r"[0-9a-f]{40}(-dirty)?", commit)


def test_outside_of_git_there_is_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert provenance()["git_commit"] is None


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert provenance()["git_commit"] is None


def measured(**changes: Any) -> dict[str, Any]:
    """A measurement on a machine that is like this one but for ``changes``."""
    return {"machine": machine() | changes, "measured_at": "2026-01-02T03:04:05Z"}


def test_measurements_of_one_machine() -> None:
    require_one_machine({})
    require_one_machine({"gloo-1": measured()})
    later = measured() | {"measured_at": "2026-02-03T04:05:06Z"}
    require_one_machine({"gloo-1": measured(), "gloo-2": later})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cpu", "Another CPU"),
        ("gpu", "Another GPU"),
        ("cores", 999),
        ("memory_gib", 99_999),
        ("kernel", "Linux 0.1"),
        ("python", "3.0.0"),
        ("torch", "2.0.0+cpu"),
    ],
)
def test_measurements_of_two_machines(key: str, value: object) -> None:
    several = {
        "gloo-1": measured(),
        "gloo-2": measured(),
        "gloo-4": measured(**{key: value}),
    }
    with pytest.raises(UserError) as raised:
        require_one_machine(several)
    line = the_line(raised)
    assert line.startswith("gloo-4: measured on another machine than gloo-1")
    assert f"({key}: {value!r}, not {machine()[key]!r})" in line


def test_peak_memory_holds_what_was_allocated_and_stays() -> None:
    before = peak_memory_mb()
    block = np.ones(8_000_000)  # 64 MB
    with_block = peak_memory_mb()
    del block
    assert before > 10
    assert with_block >= 64
    # the kernel counts pages in batches: the figure may waver by less than a megabyte
    assert peak_memory_mb() > with_block - 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux only")
def test_cores_are_those_that_the_process_may_use() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert machine()["cores"] == 1
    finally:
        os.sched_setaffinity(0, allowed)
