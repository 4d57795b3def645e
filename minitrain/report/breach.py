"""Publication of a breach in place of the last result, so that the old one is not read.

The stage that finds a breach writes this: nothing downstream of it runs.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from minitrain.analysis.verdicts import cause
from minitrain.core.files import atomic_path, open_atomic, write_json
from minitrain.proof.words import CHANGES
from minitrain.report.render import escaped, markdown, table, to_html

Verdicts = Mapping[str, Mapping[str, Any]]

# with "error: equivalence: " in front of it, a line stays below 240 characters
LONGEST_LINE = 215
HINT = (
    "; only one_process checks breach: the loss may not be the mean over the counted "
    "targets"
)
# made from speeds, accounts, losses and states of runs that are refused
REMOVED = (
    "manifest.json",
    "overview.svg",
    "scaling.csv",
    "account.png",
    "losses.csv",
    "losses.png",
)


def breach_line(verdicts: Verdicts) -> str:
    """Return the first breach by its cause, and where the others are; "" without any.

    ``verdicts`` is what metrics/equivalence.json holds: per run, rungs by name.
    """
    found = _breaches(verdicts)
    if not found:
        return ""
    (run, name, detail), more = found[0], found[1:]
    start = f"{run}: {name}: "
    hint = HINT if all(map(_may_be_the_loss, found)) else ""
    count = f"; and {len(more)} more" if more else ""
    room = LONGEST_LINE - len(start) - len(hint) - len(count)
    line = start + _cut(detail, room)
    names: dict[str, list[str]] = {}
    for one, other, _ in more:
        names.setdefault(one, []).append(other)
    where = ", ".join(f"{one} ({', '.join(names[one])})" for one in names)
    room = LONGEST_LINE - len(line) - len(hint) - len(count) - len(": ")
    # a few letters of a name would say nothing
    if more and (len(where) <= room or room > 20):
        count += f": {_cut(where, room)}"
    return line + hint + count


def refuse(verdicts: Verdicts, metrics: Path) -> None:
    """Replace the result in the folder ``metrics`` by the breach."""
    # only a breach draws
    from minitrain.report.canvas import canvas, save

    line = breach_line(verdicts)
    text = f"Breach: {line}."
    runs = {run: {"verdict": _verdict(run, verdicts)} for run in verdicts}
    write_json(metrics / "summary.json", {"breach": line, **runs})
    page = _page(verdicts, text)
    with open_atomic(metrics / "report.md") as file:
        file.write(page)
    with open_atomic(metrics / "report.html") as file:
        file.write(to_html(page, metrics))
    for name in REMOVED:
        (metrics / name).unlink(missing_ok=True)
    # a dollar sign would start a formula
    figure, axes = canvas(1.2, text.replace("$", r"\$"), right=0.97)
    axes.set_axis_off()
    with atomic_path(metrics / "scaling.png") as path:
        save(figure, path)


def refused_block(breach: str) -> str:
    """Return README's result after a breach."""
    text = "No result was published; metrics/report.md lists the differences."
    return f"**{escaped(breach)}**\n\n{text}\n"


def _breaches(verdicts: Verdicts) -> list[tuple[str, str, str]]:
    found = [
        (run, name, " ".join(str(rung.get("detail") or "no detail").split()))
        for run, rungs in verdicts.items()
        for name, rung in rungs.items()
        if isinstance(rung, Mapping) and rung.get("verdict") == "breach"
    ]
    # stable: run by run, and in a run as the ladder has them
    return sorted(found, key=lambda breach: cause(breach[1]))


def _may_be_the_loss(breach: tuple[str, str, str]) -> bool:
    _, name, detail = breach
    # a buffer that changes is the likelier cause
    return name.startswith("one_process") and CHANGES not in detail


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: max(room - 3, 0)]}..."


def _verdict(run: str, verdicts: Verdicts) -> str:
    if any(breached == run for breached, _, _ in _breaches(verdicts)):
        return "breach"
    return str(verdicts[run].get("verdict", "undecided"))


def _page(verdicts: Verdicts, text: str) -> Markup:
    runs = [
        [run, _verdict(run, verdicts), rungs.get("rests_on") or ""]
        for run, rungs in verdicts.items()
    ]
    return markdown(
        "breach.md",
        text=text,
        breaches=table(["run", "check", "difference"], _breaches(verdicts)),
        verdicts=table(["run", "verdict", "rests on"], runs),
    )
