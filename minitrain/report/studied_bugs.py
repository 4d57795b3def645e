"""What a bug would look like: what the study `zoo` found, in few words."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minitrain.core.provenance import measured_where
from minitrain.report.numbers import plural
from minitrain.report.render import Markdown, table

# what a loss curve says of a bug
HIDDEN, SHOWS, STOPS = "looks right", "looks wrong", "training stops"
COLUMNS = "injected bug", "met in", "loss curve", "caught by"


def digest(zoo: Mapping[str, Any]) -> dict[str, Any]:
    """The few facts of studies/zoo/zoo.json that the report shows."""
    bugs = {
        name: {
            "met_in": bug["met_in"],
            "check": bug["check"],
            "caught_by": [rung for rung, v in bug["verdicts"].items() if v == "breach"],
            "loss": loss_curve(bug["losses"], zoo["clean_losses"][bug["model"]]),
        }
        for name, bug in zoo["bugs"].items()
    }
    alarms = sum(bool(run["breaches"]) for run in zoo["clean"])
    made = ("measured_at", "git_commit", "code_sha256", "machine")
    return {
        "bugs": bugs,
        "clean_runs": len(zoo["clean"]),
        "alarms": alarms,
        "provenance": {key: zoo[key] for key in made},
    }


def loss_curve(mine: Sequence[float], clean: Sequence[Sequence[float]]) -> str:
    """What the losses of a run with a bug look like beside those of clean runs, one for
    each seed, the first of which is that of the run: it looks right where it is nearer
    to that one over the last quarter of the steps than seeds are spread.
    """
    curves, own = np.array(clean), np.array(mine)
    if len(own) < curves.shape[1]:
        return STOPS
    last = slice(-(len(own) // 4), None)
    gap = np.sqrt(np.mean((own - curves[0])[last] ** 2))
    spread = np.sqrt(np.mean(curves.var(0, ddof=1)[last]))
    return HIDDEN if gap <= spread else SHOWS


def bugs_headline(found: Mapping[str, Any] | None) -> str:
    """What bugs look like, in one line; without a number where other code counted."""
    if found is None:
        return "Not an error message: a comparison that says no"
    bugs = found["bugs"].values()
    met = sum(bug["check"] in bug["caught_by"] for bug in bugs)
    hidden = sum(bug["loss"] == HIDDEN for bug in bugs)
    return (
        f"{hidden} of {plural(len(bugs), 'injected bug')} left a loss curve that looks "
        f"right; {met} were caught by the comparison that is meant to"
    )


def bugs_sentences(found: Mapping[str, Any] | None) -> str:
    """What that says of this page."""
    text = (
        "A bug in data-parallel training need not stop it: a rank that keeps its own "
        "gradients, a sum in the place of a mean or samples read twice may leave a "
        "model that still learns. So the comparisons above look at samples, "
        "gradients and bits, and not at the curve."
    )
    if found is None:
        return Markdown(
            f"{text} The study studies/zoo injects such bugs one by one; what it found "
            "is left out, since other code made it. `make study-zoo` measures it, "
            "`make` then shows it here."
        )
    return (
        f"{text} The study studies/zoo injected each of these bugs, with a tiny model "
        "and 2 processes: a curve looks right where it is nearer to the clean one, "
        "over the last quarter of its steps, than clean runs of other seeds are to "
        f"each other. {found['alarms']} of {plural(found['clean_runs'], 'clean run')} "
        f"raised an alarm. {measured_where(found['provenance'])}"
    )


def bugs_table(found: Mapping[str, Any] | None) -> Markdown | None:
    """A row for each bug."""
    if found is None:
        return None
    return table(COLUMNS, [_row(name, bug) for name, bug in found["bugs"].items()])


def _row(name: str, bug: Mapping[str, Any]) -> list[str]:
    check, caught = bug["check"], bug["caught_by"]
    marks = {HIDDEN: "~", SHOWS: "✗", STOPS: "✗"}
    more = f", and {len(caught) - 1} more" if len(caught) > 1 else ""
    return [
        _words(name),
        bug["met_in"],
        f"{marks[bug['loss']]} {bug['loss']}",
        f"✓ {_words(check)}{more}" if check in caught else f"✗ not {_words(check)}",
    ]


def _words(name: str) -> str:
    return name.replace("_", " ")
