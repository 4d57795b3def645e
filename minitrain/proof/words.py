"""Checks and verdicts for terminal, JSON and report. Imports no torch."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from minitrain.analysis.rungs import CheckVerdict, Rung
from minitrain.analysis.verdicts import ONE, Basis, Ruling

SHOWN = {"witness_gradients": "of its steps", "witness_probe": "in eval mode"}


def printed(ladder: Mapping[str, Rung]) -> list[str]:
    """Return a line per check in ``ladder``: name, verdict, distance, detail."""
    width = max(map(len, ladder))
    lines = []
    for name, rung in ladder.items():
        apart, detail = rung.max_abs_diff, rung.detail
        if rung.verdict is CheckVerdict.WITHIN and apart is not None:
            detail = "; ".join(filter(None, (f"{apart:.1e} apart", detail)))
        lines.append(f"{name:<{width}}  {rung.verdict:<16}  {detail}".rstrip())
    return lines


def as_dicts(ladder: Mapping[str, Rung]) -> dict[str, dict[str, Any]]:
    """Convert rungs to dictionaries for JSON, with reasons only in words."""
    found = {name: asdict(rung) for name, rung in ladder.items()}
    return {n: {k: v for k, v in f.items() if k != "reason"} for n, f in found.items()}


def rests_on(ruling: Ruling, rungs: Mapping[str, Rung]) -> str:
    """Return the reasons for the verdict on a run with the check results ``rungs``."""
    because = [rungs[name].detail for name in ruling.because]
    shown = " and ".join(SHOWN[name] for name in ruling.witnesses)
    seen = f"an independent witness confirms the gradients {shown}"
    match ruling.basis:
        case Basis.FAILED_CHECK:
            return "; ".join(f"{name}: {rungs[name].detail}" for name in ruling.because)
        case Basis.REPLAY_AND_WITNESS:
            found = "; ".join((f"bit-identical to its replay, and {seen}", *because))
        case Basis.REPLAY:
            found = "bit-identical to its replay; no witness supports it"
            found = ": ".join((found, *filter(None, because)))
        case Basis.WITNESS:
            found = f"equal bits were not promised or not compared, but {seen}"
        case Basis.UNTRAINED:
            found = f"no parameter changed: {because[0]}"
        case Basis.NOTHING:
            found = "no bit-exact replay and no independent check"
    if ruling.is_compared:
        return found
    return f"{found}; not compared with one process: {rungs[ONE].detail}"
