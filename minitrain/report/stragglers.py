"""The sentence on a slow rank: which, by how much, and what the others lose."""

from collections.abc import Mapping
from typing import Any

from minitrain.report.numbers import ms, percent, plural

OWN_WORK = "its own work (batch, forward and backward pass, optimizer)"


def straggler_sentence(run: str, found: Mapping[str, Any]) -> str:
    """What the steps of ``run`` say of its ranks; ``found`` is its ``stragglers`` in
    metrics/timing.json.
    """
    if found["undecided"]:
        return (
            f"Whether the ranks of {run} wait for one of them is undecided: "
            f"{found['undecided']}."
        )
    counted = plural(found["num_steps"], "step")
    if not found["slow"]:
        visible = ms(found["visible_ms"])
        return (
            f"No straggler is seen in {run}: a rank that needed {visible} a step more "
            f"than the others for {OWN_WORK} would have been ({counted})."
        )
    first, *more = found["slow"]
    also = "".join(f", rank {lag['rank']} by {ms(lag['excess_ms'])}" for lag in more)
    text = (
        f"Rank {first['rank']} of {run} needs {ms(first['excess_ms'])} a step more "
        f"than the others (90 % confidence: {first['low_ms']:.1f} to "
        f"{ms(first['high_ms'])}{also}) for {OWN_WORK}"
    )
    wait, step = found["others_wait_ms"], found["step_ms"]
    if wait is None:
        return f"{text}; how long they wait for it was not timed ({counted})."
    return (
        f"{text}; they wait {ms(wait)} for it in a step of {ms(step)}, "
        f"{percent(wait / step)} ({counted})."
    )
