"""Publication of a breach (a failed check), which replaces the previous result.

The stage that finds a breach writes it, since no stage downstream will run.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from minitrain.analysis.verdicts import order_in_step
from minitrain.core.files import atomic_path, write_json
from minitrain.core.printable import shortened
from minitrain.report.checks import Mark, outcomes_of
from minitrain.report.render import markdown, write_page

Verdicts = Mapping[str, Mapping[str, Any]]

# keeps a line with the prefix "error: equivalence: " below 240 characters
LONGEST_LINE = 215
# files derived from the rejected runs
REMOVED = (
    *("manifest.json", "overview.svg", "scaling.csv", "losses.csv", "losses.png"),
    *("account.csv", "account.png", "timing.json"),
)


class Breach(NamedTuple):
    """A failed check of a run, and the reason."""

    run: str
    check: str
    detail: str


def breach_line(verdicts: Verdicts) -> str:
    """Return one line: the first failed check, causes before effects, and the number of
    others; "" if none failed. ``verdicts`` is the content of metrics/equivalence.json:
    per run, check results by name.
    """
    found = _breaches(verdicts)
    if not found:
        return ""
    end = f"; and {len(found) - 1} more" if len(found) > 1 else ""
    return shortened(": ".join(found[0]), LONGEST_LINE - len(end)) + end


def refuse(verdicts: Verdicts, metrics: Path) -> None:
    """Replace the result in the folder ``metrics``: write a page, summary and chart on
    the breaches in ``verdicts`` (at least one), and delete the files in ``REMOVED``.
    """
    # imported here: only a breach needs matplotlib
    from minitrain.report.canvas import canvas, save

    line, breaches = breach_line(verdicts), _breaches(verdicts)
    text, refused = f"Breach: {line}.", {breach.run for breach in breaches}
    by_run = {
        run: "breach" if run in refused else entry["verdict"]
        for run, entry in verdicts.items()
    }
    runs = {run: {"verdict": verdict} for run, verdict in by_run.items()}
    write_json(metrics / "summary.json", {"breach": line, **runs})
    shown = {"breaches": breaches, "verdicts": by_run, "equivalence": verdicts}
    write_page(markdown("breach.md", text=text, **shown), metrics)
    for name in REMOVED:
        (metrics / name).unlink(missing_ok=True)
    # matplotlib treats dollar signs as math
    figure, axes = canvas(1.2, text.replace("$", r"\$"), right=0.97)
    axes.set_axis_off()
    with atomic_path(metrics / "scaling.png") as path:
        save(figure, path)


def _breaches(verdicts: Verdicts) -> list[Breach]:
    found = [
        Breach(run, name, " ".join(outcome.figures["detail"].split()))
        for run, entry in verdicts.items()
        for name, outcome in outcomes_of(entry).items()
        if outcome.mark is Mark.BREACH
    ]
    # a stable sort keeps the order of runs, and of the checks of a run
    return sorted(found, key=lambda breach: order_in_step(breach.check))
