"""Where and when a measurement was made: stored beside every file of timings."""

import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from minitrain.errors import UserError


def installed_torch() -> str:
    """Version of the installed torch with its build, such as ``2.13.0+cpu``."""
    return version("torch")


def require_torch(pinned: str) -> None:
    """Raise UserError unless the installed torch release is ``pinned`` (any build)."""
    installed = installed_torch()
    if installed.split("+")[0] != pinned:
        raise UserError(
            f"params.yaml: environment.torch = {pinned!r}: must be the release that is "
            f"installed, {installed.split('+')[0]!r}"
        )


def machine(gpu: str | None = None) -> dict[str, Any]:
    """What a measurement depends on: equal for two measurements worth comparing."""
    return {
        "cpu": _cpu_name(),
        "gpu": gpu,
        "cores": usable_cores(),
        "memory_gib": round(_memory_bytes() / 2**30),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": installed_torch(),
    }


def usable_cores() -> int:
    """Cores that this process may run on, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def provenance(gpu: str | None = None) -> dict[str, Any]:
    """Machine, time (UTC) and git commit of a measurement that is being made."""
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "git_commit": _git_commit(),
        "machine": machine(gpu),
    }


def measured_where(origin: Mapping[str, Any]) -> str:
    """A sentence made of :func:`provenance`: when, and on what machine."""
    machine = origin["machine"]
    device = machine["gpu"] or f"{machine['cpu']}, {machine['cores']} cores"
    return (
        f"Measured on {origin['measured_at'][:10]}: {device}, torch {machine['torch']}."
    )


def require_one_machine(measurements: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise UserError when measurements (by name) come from several machines.

    DVC's run cache can bring back old timings; this is where that would show.
    """
    names = list(measurements)
    for name in names[1:]:
        first, other = measurements[names[0]]["machine"], measurements[name]["machine"]
        for key in first:
            if first[key] != other[key]:
                raise UserError(
                    f"{name}: measured on another machine than {names[0]} ({key}: "
                    f"{other[key]!r}, not {first[key]!r}); measure again with "
                    "dvc repro --force"
                )


def peak_memory_mb() -> float:
    """Largest resident memory of this process so far, in MB (10^6 bytes)."""
    status = Path("/proc/self/status")
    if status.exists():
        # ru_maxrss would count what the parent used before this process was started
        line = next(x for x in status.read_text().splitlines() if x[:6] == "VmHWM:")
        return int(line.split()[1]) * 1024 / 1e6
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _git_commit() -> str | None:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
