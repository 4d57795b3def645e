"""The picture of two recordings: how far they are apart, step by step.

It stands here and not beside the comparison: it is drawn on the canvas of
``minitrain/report``, which ``minitrain/compare`` does not know.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes

from minitrain.cli.recording_words import KINDS, number_of, only_in_words, placed
from minitrain.core.files import atomic_path
from minitrain.core.printable import printable
from minitrain.report.canvas import BLACK, BLUE, ORANGE, canvas, save

if TYPE_CHECKING:
    from minitrain.compare.comparer import StepCompared
    from minitrain.compare.recordings import RecordingsCompared

HEIGHT_IN = 4.0
# where equal bits are drawn, on an axis that has no zero, and where what is infinite
EQUAL, FARTHEST = 1e-10, 1e2
LOOKS = {"gradients": (BLUE, "o", "-"), "parameters": (ORANGE, "s", "--")}
OF = {"gradients": "of the largest gradient", "parameters": "of how far it has moved"}


def draw_recordings(found: "RecordingsCompared", path: Path) -> None:
    """Draw the distance of gradients and of parameters at each recorded step, and what
    is allowed, as a PNG at ``path``.
    """
    figure, axes = canvas(HEIGHT_IN, _title(found), right=0.97, left=0.15, head=0.6)
    # one optimizer: the steps of several have numbers of their own
    first = found.first.optimizer if found.first else found.steps[0].optimizer
    steps = [step for step in found.steps if step.optimizer == first]
    for kind in KINDS:
        _draw(axes, steps, kind, "ten times the twin" if found.twin else "quick limit")
    if found.first and found.first.step >= 0:
        axes.axvline(found.first.step, color=BLACK, linewidth=1.2, linestyle=":")
        text = f" first: {found.first.what} "
        # towards the middle, where there is room
        late = found.first.step > (steps[0].step + steps[-1].step) / 2
        place = axes.get_xaxis_transform()
        side = "right" if late else "left"
        axes.text(found.first.step, 0.95, text, transform=place, ha=side)
    axes.set_yscale("log")
    axes.set_ylim(EQUAL / 2, FARTHEST)
    ticks = [EQUAL, *(10.0**n for n in range(-8, 1, 2))]
    axes.set_yticks(ticks, ["equal bits", *(f"1e{n}" for n in range(-8, 0, 2)), "1"])
    axes.set_xlabel("step")
    # there is no step 2.5
    axes.locator_params(axis="x", integer=True)
    axes.set_ylabel("distance of A and B, as a share")
    axes.minorticks_off()
    handles, _ = axes.get_legend_handles_labels()
    place_of_legend: dict[str, Any] = {
        "loc": "lower left",
        "bbox_to_anchor": (-0.01, 1.0),
        "ncols": 2,
    }
    axes.legend(handles=handles, frameon=False, fontsize=9, **place_of_legend)
    with atomic_path(path) as temporary:
        save(figure, temporary)


def _draw(axes: Axes, steps: Sequence["StepCompared"], kind: str, limit: str) -> None:
    color, marker, line = LOOKS[kind]
    looks: dict[str, Any]
    found = [getattr(step, kind) for step in steps]
    numbers = [step.step for step in steps]
    apart = [min(max(one.share, EQUAL), FARTHEST / 2) for one in found]
    looks = {"color": color, "marker": marker, "linestyle": line, "markersize": 5}
    axes.plot(numbers, apart, label=f"{kind}, {OF[kind]}", **looks)
    known = [(n, one.allowed_share) for n, one in zip(numbers, found, strict=True)]
    known = [(number, allowed) for number, allowed in known if allowed > 0]
    if not known:
        return
    xs, tops = zip(*known, strict=True)
    looks = {"color": color, "alpha": 0.12, "linewidth": 0}
    axes.fill_between(xs, EQUAL / 2, tops, label=f"allowed: {limit}", **looks)
    axes.plot(xs, tops, color=color, linewidth=0.8, alpha=0.7)


def _title(found: "RecordingsCompared") -> str:
    verdict = found.verdict[:1].upper() + found.verdict[1:]
    if found.first:
        return _plain(f"{verdict} {placed(found.first)}")
    if not found.same:
        only = only_in_words(found.only_in_a[:1], found.only_in_b[:1])
        why = [*found.broken, *found.unseen, *only]
        return _plain(f"{verdict}: {', '.join(why)}")
    return f"{verdict}: {number_of(found.steps)}"


def _plain(text: str) -> str:
    """Nothing that matplotlib would take for a formula."""
    return printable(text).replace("$", r"\$")
