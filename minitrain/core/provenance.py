"""Provenance of a measurement: machine, time and code, stored with every result."""

import hashlib
import json
import os
import platform
import re
import resource
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from minitrain.core.code_lock import read_lock
from minitrain.core.errors import UserError

# tracked files that determine a result; other files may differ from the commit, since
# DVC removes a stage's outputs before it runs
CODE = ("*.py", "*params.yaml", "*dvc.yaml", "requirements.lock")


def require_torch(pinned: str) -> None:
    """Raise UserError if the installed torch release is not ``pinned`` (any build)."""
    installed = version("torch").partition("+")[0]
    if installed != pinned:
        raise UserError(
            f"params.yaml: environment.torch = {pinned!r}: must be the release that is "
            f"installed, {installed!r}"
        )


def machine(gpu: str | None = None) -> dict[str, Any]:
    """Return the facts about this machine that two measurements must share to be
    compared. ``gpu`` is the GPU's name, or None; memory is in GiB (2^30 bytes).
    """
    pages = os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _cpu_name(),
        "gpu": gpu,
        "cores": usable_cores(),
        "memory_gib": round(pages * os.sysconf("SC_PAGE_SIZE") / 2**30),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": version("torch"),
    }


def usable_cores() -> int:
    """Return the number of cores in this process's CPU affinity mask."""
    return len(os.sched_getaffinity(0))


def provenance(script: Path, gpu: str | None = None) -> dict[str, Any]:
    """Return machine, time (UTC) and code of a measurement made by ``script``.

    ``git_commit`` is None outside a git repository and ends in ``-dirty`` if code
    differs from the commit. For the script of a study, ``code`` holds the hashes in its
    ``code.lock``; for other scripts, ``code_sha256`` is the :func:`code_sha256`.
    """
    lock = read_lock(script.resolve().parent / "code.lock")
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "git_commit": _git_commit(script),
        **({"code": lock} if lock else {"code_sha256": code_sha256(script)}),
        "machine": machine(gpu),
    }


def code_sha256(script: Path) -> str | None:
    """Return one hash of all code that the DVC stage of ``script`` depends on.

    SHA-256 of lines ``md5  path``, sorted by path relative to the project root, with
    the MD5s of dvc.lock. None if no stage runs ``script``.
    """
    script = script.resolve()
    root = _project(script)
    folder = next((p for p in script.parents if (p / "dvc.yaml").is_file()), None)
    if root is None or folder is None:
        return None
    md5s = {}
    for dep in _deps(script, folder):
        path = Path(os.path.normpath(folder / dep))
        if md5 := _md5_of_code(path):
            md5s[Path(os.path.relpath(path, root)).as_posix()] = md5
    lines = [f"{md5}  {path}\n" for path, md5 in sorted(md5s.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest() if lines else None


def bits_depend_on(threads: int) -> dict[str, Any]:
    """Return the facts about machine and build that determine the bits of a run, given
    its code and ``threads`` per process.
    """
    return {
        "cpu": _cpu_name(),
        "torch": version("torch"),
        "threads_per_process": threads,
    }


def require_same_build(named: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise UserError if runs, by file name, differ in their :func:`bits_depend_on`."""
    _require_same(named, "bits of different machines are not compared; make both here")


def require_one_machine(measurements: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise UserError if the ``measurements``, each a :func:`provenance` by name, come
    from several machines, as when DVC's run cache restored old timings.
    """
    machines = {name: one["machine"] for name, one in measurements.items()}
    _require_same(machines, "measured on another machine; repeat it")


def _require_same(named: Mapping[str, Mapping[str, Any]], why: str) -> None:
    for first, here in [*named.items()][:1]:
        for name, other in named.items():
            for key in {**here, **other}:
                if here.get(key) != other.get(key):
                    raise UserError(
                        f"{name}: {key} = {other.get(key)!r}, but {here.get(key)!r} in "
                        f"{first}: {why} with dvc repro --force"
                    )


def measured_where(origin: Mapping[str, Any]) -> str:
    """Return date, machine and torch of a :func:`provenance` as one sentence."""
    machine = origin["machine"]
    device = machine["gpu"] or f"{machine['cpu']}, {machine['cores']} cores"
    return (
        f"Measured on {origin['measured_at'][:10]}: {device}, torch {machine['torch']}."
    )


def peak_memory_mb() -> float:
    """Return the peak resident memory of this process, in MB (10^6 bytes)."""
    # ru_maxrss includes the peak of the parent before exec
    peak = _of_proc("self/status", "VmHWM")
    rusage = resource.getrusage(resource.RUSAGE_SELF)
    return (int(peak.split()[0]) if peak else rusage.ru_maxrss) * 1024 / 1e6


def _cpu_name() -> str:
    return (
        _of_proc("cpuinfo", "model name") or platform.processor() or platform.machine()
    )


def _of_proc(file: str, key: str) -> str:
    # /proc may be hidden in a container, and keys depend on the kernel
    path = Path("/proc", file)
    lines = path.read_text().splitlines() if path.exists() else []
    values = [line.partition(":")[2] for line in lines if line.startswith(key)]
    return values[0].strip() if values else ""


def _project(script: Path) -> Path | None:
    # the outermost: studies are a DVC project inside it
    return next((p for p in reversed(script.parents) if (p / ".dvc").is_dir()), None)


def _git_commit(script: Path) -> str | None:
    """Return the commit, with ``-dirty`` if code is modified or untracked."""
    folder = _project(script.resolve()) or script.resolve().parent
    commit = _git(folder, "rev-parse", "HEAD")
    changed = _git(folder, "status", "--porcelain", "--", *CODE)
    return f"{commit}-dirty" if commit and changed else commit


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout.strip()


def _deps(script: Path, folder: Path) -> list[str]:
    # dependencies of the stage in folder/dvc.yaml that runs the script
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe")
    params = folder / "params.yaml"
    sections = yaml.load(params.read_text("utf-8")) if params.is_file() else {}
    values = {f"{s}.{key}": sections[s][key] for s in sections for key in sections[s]}
    inside = script.relative_to(folder)
    names = {inside.as_posix(), ".".join(inside.with_suffix("").parts)}
    stages = yaml.load((folder / "dvc.yaml").read_text("utf-8"))["stages"]
    for stage in stages.values():
        if names & {*stage["cmd"].split()}:
            # resolve ${section.key} from params.yaml
            return [
                re.sub(r"\$\{([\w.]+)\}", lambda m: str(values.get(m[1], m[0])), dep)
                for dep in stage["deps"]
            ]
    return []


def _md5_of_code(path: Path) -> str | None:
    """Return the MD5 in dvc.lock of a Python file or a folder of them, else None."""
    if path.suffix == ".py":
        return _md5(path.read_bytes())
    files = [p for p in path.rglob("*") if p.is_file()]
    inside = {p.relative_to(path).as_posix(): p for p in files}
    if not any(name.endswith(".py") for name in inside):
        return None
    # the same JSON as DVC's for a folder, without the files in .dvcignore
    listed = [
        {"md5": _md5(inside[name].read_bytes()), "relpath": name}
        for name in sorted(inside)
        if "__pycache__" not in inside[name].parts
    ]
    return f"{_md5(json.dumps(listed).encode())}.dir"


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
