"""Probe this machine and its torch: every collective against known answers.

Tries each collective over gloo at 2, 3 and 4 ranks, with each reduce operation, in
float64, 32, 16 and 8 (e4m3fn), bfloat16, complex64, bool and the integers; and looks at
network and threads. Exit code 0: nothing is wrong, though some may be
unsupported, 1: something is wrong.
"""

import argparse
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

from minitrain.cli.answer import Answer
from minitrain.report.numbers import plural

if TYPE_CHECKING:
    from minitrain.cli.checks.collectives import Probe
    from minitrain.cli.checks.machine import Examination

EXAMPLES = {
    "what is odd, a line each": "minitrain doctor",
    "every probe, for a program": "minitrain doctor --json",
}


def answer(options: argparse.Namespace) -> Answer:
    """Examine, and say what was found."""
    print("trying every collective, about ten seconds ...", file=sys.stderr, flush=True)
    # torch takes seconds to import: not for --help
    from minitrain.cli.checks.machine import examine

    found = examine()
    return Answer(found.ok, {"ok": found.ok, **asdict(found)}, in_words(found))


def in_words(found: "Examination") -> str:
    """Return a line for each fact, the right collectives counted, the others named."""
    width = max(len(check.name) for check in found.checks)
    lines = [
        f"{check.verdict:<8}{check.name:<{width}}  {check.detail}"
        for check in found.checks
    ]
    verdicts = [probe.verdict for probe in found.probes]
    if verdicts:
        right = f"{verdicts.count('right')} of {plural(len(verdicts), 'probe')}"
        odd = [f"{verdicts.count(v)} {v}" for v in ("unsupported", "wrong")]
        lines.append(f"collectives: {right} gave the known answer, {', '.join(odd)}")
    lines += _odd(found.probes)
    return "\n".join(lines)


def _odd(probes: Iterable["Probe"]) -> list[str]:
    """Return a line for each call that is wrong, in all types and world sizes; one for
    all calls that do not support the same types.
    """
    calls: dict[tuple[str, str], list[Probe]] = {}
    for probe in probes:
        if probe.verdict != "right":
            name = f"{probe.collective} {probe.op}".strip()
            calls.setdefault((probe.verdict, name), []).append(probe)
    names: dict[tuple[str, str], list[str]] = {}
    for (verdict, name), odd in calls.items():
        sizes = ", ".join(str(size) for size in sorted({p.world_size for p in odd}))
        types = ", ".join(dict.fromkeys(probe.dtype for probe in odd))
        said = f"of {types} at {sizes} ranks: {odd[0].detail}"
        names.setdefault((verdict, said), []).append(name)
    wrong_first = sorted(names, key=lambda line: line[0], reverse=True)
    return [f"{line[0]}: {', '.join(names[line])} {line[1]}" for line in wrong_first]
