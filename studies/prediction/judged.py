"""Verdict on the model's errors, as a sentence and a title; none if busy."""

from typing import Any

import pandas as pd
from held_out import Errors, errors

from minitrain.analysis.busy import why_busy
from minitrain.report.numbers import percent, plural


def errors_of(rows: pd.DataFrame) -> Errors:
    return errors(list(rows["predicted_ms"]), list(rows["measured_ms"]))


def busy_meanwhile(origin: dict[str, Any]) -> str | None:
    # no spread: variation within an arm is already in the medians
    return why_busy(origin["load"], 0.0)


def verdict(found: Errors, busy: str | None) -> str:
    said = f"The model is {'' if found.is_believed else 'not '}believed"
    if busy:
        said = f"The model is not judged, since the machine was busy ({busy})"
    return (
        f"{said}: over {plural(found.count, 'setting')} that it was not "
        f"fitted on, the median error is {percent(found.median)} (wanted: at most 8 %) "
        f"and the 95 % quantile {percent(found.p95)} (at most 20 %)."
    )


def title(found: Errors, busy: str | None) -> str:
    what = f"Steps of {plural(found.count, 'setting')} never fitted"
    if busy:
        return f"{what}: not judged, since the machine was busy ({busy})"
    return (
        f"{what}: median error {percent(found.median)}, 95 % of them within "
        f"{percent(found.p95)}"
    )
