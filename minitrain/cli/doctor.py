"""Probe this machine and its torch: every collective against known answers.

Tries each collective with each type and reduce operation over gloo at 2, 3 and 4 ranks,
and looks at network, ports, shared memory and threads. Exit code 0: nothing is wrong,
1: something is.
"""

import argparse
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

from minitrain.cli.answer import Answer
from minitrain.report.numbers import plural

if TYPE_CHECKING:
    from minitrain.cli.checks.collectives import Probe
    from minitrain.cli.checks.machine import Examination


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There are none of its own."""


def answer(options: argparse.Namespace) -> Answer:
    """Examine, and say what was found."""
    # torch takes seconds to import: not for --help
    from minitrain.cli.checks.machine import examine

    found = examine()
    return Answer(found.well, {"well": found.well, **asdict(found)}, in_words(found))


def in_words(found: "Examination") -> str:
    """A line for each fact, then what the collectives gave: what is right, counted."""
    width = max(len(check.name) for check in found.checks)
    lines = [
        f"{check.verdict:<8}{check.name:<{width}}  {check.detail}"
        for check in found.checks
    ]
    right = sum(probe.verdict == "right" for probe in found.probes)
    if found.probes:
        total = plural(len(found.probes), "probe")
        lines.append(f"collectives: {right} of {total} gave the known answer")
    lines += _odd(found.probes)
    return "\n".join(lines)


def _odd(probes: Iterable["Probe"]) -> list[str]:
    """What is wrong or unsupported: a line for all types and world sizes of a call."""
    kinds: dict[tuple[str, str, str], list[Probe]] = {}
    for probe in probes:
        if probe.verdict != "right":
            call = (probe.verdict, probe.collective, probe.op)
            kinds.setdefault(call, []).append(probe)
    lines = []
    for (verdict, collective, op), odd in sorted(kinds.items(), reverse=True):
        sizes = ", ".join(str(size) for size in sorted({p.world_size for p in odd}))
        types = ", ".join(dict.fromkeys(probe.dtype for probe in odd))
        name = f"{collective} {op}".strip()
        lines.append(f"{verdict}: {name} of {types} at {sizes} ranks: {odd[0].detail}")
    return lines
