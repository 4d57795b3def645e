"""What a breach puts in the place of the last result, so that nobody reads the old one.

The stage that found it writes this: nothing downstream of it runs.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minitrain.analysis.verdicts import cause
from minitrain.core.files import atomic_path, open_atomic, write_json
from minitrain.core.params import Params
from minitrain.proof.words import CHANGES
from minitrain.report.render import (
    Markdown,
    escaped,
    markdown,
    table,
    write_marked,
)
from minitrain.report.webpage import to_html

Verdicts = Mapping[str, Mapping[str, Any]]

# with "error: equivalence: " in front of it, a line stays below 240 characters
LONGEST_LINE = 215
HINT = (
    "; only one_process rungs breach: the loss may not be the mean over the counted "
    "targets"
)
# what a manifest says, in this order; nothing that was measured is known
MANIFEST = (
    "seed",
    "lab",
    "backend",
    "world_size",
    "model_params",
    "steps",
    "allreduce_p50_ms",
    "allreduce_p95_ms",
    "tokens_per_sec_1proc",
    "tokens_per_sec_2proc",
    "byte_equivalent",
    "lesson_notes",
    "launcher",
)
# made of the speeds, account, losses and states of runs that are refused
REMOVED = (
    "overview.svg",
    "scaling.csv",
    "account.png",
    "losses.csv",
    "losses.png",
    "samples.json",
)


def breach_line(verdicts: Verdicts) -> str:
    """The first breach by its cause, and how many more are where; "" without any.

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


def refuse(verdicts: Verdicts, params: Params, metrics: Path, readme: Path) -> None:
    """Replace the result in the folder ``metrics`` and in ``readme`` by the breach."""
    # only a breach draws
    from minitrain.report.canvas import canvas, save

    line = breach_line(verdicts)
    said = f"Breach: {line}."
    runs = {run: {"verdict": _verdict(run, verdicts)} for run in verdicts}
    write_json(metrics / "summary.json", {"breach": line, **runs})
    write_json(metrics / "manifest.json", _manifest(verdicts, params, said))
    page = _page(verdicts, said)
    with open_atomic(metrics / "report.md") as file:
        file.write(page)
    with open_atomic(metrics / "report.html") as file:
        file.write(to_html(page))
    for name in REMOVED:
        (metrics / name).unlink(missing_ok=True)
    write_marked(readme, "result", refused_block(said))
    write_marked(readme, "made-by", "")
    # a dollar sign would start a formula
    figure, axes = canvas(1.2, said.replace("$", r"\$"), right=0.97)
    axes.set_axis_off()
    with atomic_path(metrics / "scaling.png") as path:
        save(figure, path)


def refused_block(breach: str) -> str:
    """README's result after a breach, in the words of the manifest."""
    text = "Nothing was published: metrics/report.md says what differs."
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


def _manifest(verdicts: Verdicts, params: Params, said: str) -> dict[str, Any]:
    known = {
        "seed": params.train.seed,
        "lab": "minitrain",
        "backend": "gloo",
        "world_size": max(params.gloo.world_sizes),
        "steps": params.train.num_steps,
        "byte_equivalent": False,
        "lesson_notes": said,
    }
    runs = {
        run: {"verdict": _verdict(run, verdicts), "rests_on": rungs.get("rests_on")}
        for run, rungs in verdicts.items()
    }
    nulls: dict[str, Any] = dict.fromkeys(MANIFEST)
    return {**nulls, **known, "verdict": "breach", "verdicts": runs}


def _page(verdicts: Verdicts, said: str) -> Markdown:
    runs = [
        [run, _verdict(run, verdicts), rungs.get("rests_on") or ""]
        for run, rungs in verdicts.items()
    ]
    return markdown(
        "refused.md",
        said=said,
        breaches=table(["run", "rung", "what differs"], _breaches(verdicts)),
        verdicts=table(["run", "verdict", "rests on"], runs),
    )
