"""Digest of the study's results for the report of the pipeline."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import numpy as np


class LossCurve(StrEnum):
    """Appearance of the loss curve of a run with an injected bug."""

    HIDDEN = "looks right"
    SHOWS = "looks wrong"
    STOPS = "training stops"


def digest(zoo: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of zoo.json that the report of the pipeline shows."""
    bugs = {
        name: {
            "met_in": bug["met_in"],
            "check": bug["check"],
            "caught_by": [rung for rung, v in bug["verdicts"].items() if v == "breach"],
            "loss": loss_curve(bug["losses"], zoo["clean_losses"][bug["model"]]),
        }
        for name, bug in zoo["bugs"].items()
    }
    made = ("measured_at", "git_commit", "code", "machine")
    return {
        "bugs": bugs,
        "clean_runs": len(zoo["clean"]),
        "alarms": sum(bool(run["breaches"]) for run in zoo["clean"]),
        "provenance": {key: zoo[key] for key in made if key in zoo},
    }


def loss_curve(mine: Sequence[float], clean: Sequence[Sequence[float]]) -> LossCurve:
    """Classify the losses of a run with a bug by those of clean runs.

    ``clean`` has one run per seed; the first has the seed of the run. A curve looks
    right if its distance to that one, over the last quarter of the steps, is at most
    the spread of the seeds.
    """
    curves, own = np.array(clean), np.array(mine)
    if len(own) < curves.shape[1]:
        return LossCurve.STOPS
    last = slice(-(len(own) // 4), None)
    distance = np.sqrt(np.mean((own - curves[0])[last] ** 2))
    spread = np.sqrt(np.mean(curves.var(0, ddof=1)[last]))
    return LossCurve.HIDDEN if distance <= spread else LossCurve.SHOWS
