"""Draw the pictures of docs/concepts.md as SVG.

    .venv/bin/python docs/pictures/diagrams.py

Each picture is 390 units wide, so that it is readable on a telephone. Colours are of
the Okabe-Ito palette, which stays distinct for colour-blind readers; every colour has a
label. A dark page gets light text by a media query inside the file.

The timeline is drawn from the trace of studies/trace, the others are schematic.
"""

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import Any

from minitrain.core.provenance import measured_where

FOLDER = Path(__file__).parent
TRACE = FOLDER.parents[1] / "studies/trace"
WIDTH = 390
STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #222; }
.title { font-weight: 600; }
.in { text-anchor: middle; }
.before { text-anchor: end; }
.on { fill: #fff; }
.ink { fill: #000; }
.line { stroke: #222; fill: none; stroke-width: 1.5; }
.empty { fill: #fff; stroke: #777; }
.some { fill: #56b4e9; stroke: #777; }
.all { fill: #0072b2; stroke: #777; }
.sent { stroke: #d55e00; stroke-width: 3; }
.forward { fill: #0072b2; }
.backward { fill: #56b4e9; }
.reduce { fill: #d55e00; }
.optimizer { fill: #666; }
.exposed { fill: none; stroke: #d55e00; stroke-width: 2; stroke-dasharray: 4 2; }
@media (prefers-color-scheme: dark) {
  text { fill: #eee; }
  .ink { fill: #000; }
  .on { fill: #fff; }
  .line { stroke: #eee; }
}
"""


def main() -> None:
    for name, text in {**pictures(), **measured_pictures()}.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


def pictures() -> dict[str, str]:
    """Return the text of each schematic picture by the name of its file."""
    return {"ring.svg": ring(), "overlap.svg": overlap()}


def measured_pictures() -> dict[str, str]:
    """Return the text of each picture of a result by the name of its file."""
    trace = json.loads(gzip.decompress((TRACE / "trace.json.gz").read_bytes()))
    origin = json.loads((TRACE / "machine.json").read_text(encoding="utf-8"))
    return {"timeline.svg": timeline(trace, origin)}


def svg(height: int, title: str, shapes: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'role="img" aria-label="{title}">'
    )
    style = f"<style>\n{STYLE}</style>"
    return "\n".join([head, f"<title>{title}</title>", style, *shapes, "</svg>", ""])


def text(x: float, y: float, words: str, kind: str = "") -> str:
    words = escape(words, quote=False)
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{words}</text>'


def box(x: float, y: float, width: float, height: float, kind: str) -> str:
    size = f'width="{width:g}" height="{height:g}"'
    return f'<rect x="{x:g}" y="{y:g}" {size} class="{kind}"/>'


def ring(ranks: int = 3) -> str:
    """Draw a ring all-reduce: what each rank holds before and after each message."""
    held = [[{rank} for _ in range(ranks)] for rank in range(ranks)]
    shapes = [
        text(19 + rank * 122 + 54, 16, f"rank {rank}", "title in")
        for rank in range(ranks)
    ]
    y = 24.0
    for step in range(2 * (ranks - 1)):
        gathers = step >= ranks - 1
        name = "all-gather" if gathers else "reduce-scatter"
        sent = [(rank - step) % ranks for rank in range(ranks)]
        shapes += state(y, held, sent, f"{name}, message {step % (ranks - 1) + 1}")
        before = [[set(chunk) for chunk in row] for row in held]
        for rank, chunk in enumerate(sent):
            after = held[(rank + 1) % ranks]
            after[chunk] = before[rank][chunk] | (set() if gathers else after[chunk])
        y += 72
    shapes += state(y, held, [], "every rank holds the sum")
    title = "Ring all-reduce of three ranks: reduce-scatter, then all-gather"
    return svg(int(y) + 72, title, shapes)


def state(
    y: float, held: list[list[set[int]]], sent: list[int], name: str
) -> list[str]:
    """Draw a row: a box for each chunk of each rank, those sent next with a border."""
    shapes = []
    for rank, chunks in enumerate(held):
        for at, ranks in enumerate(chunks):
            x = 19 + rank * 122 + at * 36
            kind = "empty" if len(ranks) == 1 else "some"
            kind = "all" if len(ranks) == len(held) else kind
            border = " sent" if sent and sent[rank] == at else ""
            words = "all" if kind == "all" else "+".join(map(str, sorted(ranks)))
            shapes.append(box(x + 2, y + 2, 32, 28, kind + border))
            label = "on" if kind == "all" else "ink"
            shapes.append(text(x + 18, y + 21, words, f"in {label}"))
    shapes.append(text(WIDTH / 2, y + 49, name, "in"))
    return shapes


def overlap() -> str:
    """Draw a step of DDP, with each bucket reduced as soon as it is ready, and after
    the backward pass.
    """
    shapes = []
    for y, title, starts, step_at in (
        (0, "Reduce after backward", (222, 280), 338),
        (116, "Reduce each bucket as soon as it is ready", (150, 222), 280),
    ):
        shapes += [
            text(10, y + 18, title, "title"),
            box(10, y + 28, 66, 26, "forward"),
            text(43, y + 46, "forward", "in on"),
        ]
        for index, layer in enumerate((4, 3, 2, 1)):
            x = 78 + index * 36
            shapes += [
                box(x, y + 28, 34, 26, "backward"),
                text(x + 17, y + 46, f"L{layer}", "in ink"),
            ]
        for x, bucket in zip(starts, ("L4 L3", "L2 L1"), strict=True):
            shapes += [
                box(x, y + 60, 56, 26, "reduce"),
                text(x + 28, y + 78, bucket, "in ink"),
            ]
        shapes += [
            box(step_at, y + 28, 42, 26, "optimizer"),
            text(step_at + 21, y + 46, "step", "in on"),
        ]
    shapes.append('<path class="line" d="M223 210 v10 h54 v-10"/>')
    shapes.append(text(250, 236, "exposed", "in"))
    for x, kind, words in (
        (10, "backward", "backward of a layer"),
        (190, "reduce", "all-reduce of a bucket"),
    ):
        shapes += [box(x, 250, 14, 14, kind), text(x + 20, 262, words)]
    title = "A step of data-parallel training, with and without overlap"
    return svg(274, title, shapes)


Interval = tuple[float, float]


@dataclass(frozen=True)
class TracedStep:
    """A step of one rank, in milliseconds: its phases by name in order, and the
    all-reduce of each bucket.
    """

    rank: int
    phases: list[tuple[str, Interval]]
    buckets: list[Interval]
    last_gradient: float

    @property
    def exposed(self) -> Interval:
        """From the last gradient until the optimizer can begin."""
        return self.last_gradient, self.phases[-2][1][1]

    @property
    def hidden_ms(self) -> float:
        """How long at least one bucket is in flight before the last gradient."""
        total, reached = 0.0, 0.0
        for begin, end in sorted(self.buckets):
            begin, end = max(begin, reached), min(end, self.last_gradient)
            total += max(0.0, end - begin)
            reached = max(reached, end)
        return total


def first_step(events: Sequence[dict[str, Any]]) -> tuple[int, list[TracedStep]]:
    """Return the number of the first traced step, and that step of each rank."""
    gradients = [e for e in events if e["name"] == "last gradient"]
    number = min(e["args"]["step"] for e in gradients)
    steps = [e for e in events if e["name"] == f"step {number}"]
    start = min(e["ts"] for e in steps)

    def interval(event: dict[str, Any]) -> Interval:
        begin = event["ts"] - start
        return begin / 1000, (begin + event.get("dur", 0)) / 1000

    found = []
    for step in sorted(steps, key=lambda e: e["pid"]):
        begin, end = interval(step)
        own = [e for e in events if e["pid"] == step["pid"]]
        of_step = [e for e in own if e.get("args", {}).get("step") == number]
        phases = [(e["name"], interval(e)) for e in own if e.get("cat") == "phase"]
        inside = [p for p in phases if begin <= p[1][0] and p[1][1] <= end]
        sent = [e for e in of_step if e.get("cat") == "all-reduce"]
        sent.sort(key=lambda e: e["args"]["bucket"])
        buckets = [interval(e) for e in sent]
        (last,) = (interval(e)[0] for e in of_step if e["name"] == "last gradient")
        found.append(TracedStep(step["pid"], inside, buckets, last))
    return number, found


def timeline(trace: dict[str, Any], origin: dict[str, Any]) -> str:
    """Draw the first step of a trace: the phases of each rank, and below them the
    all-reduce of each bucket.
    """
    number, steps = first_step(trace["traceEvents"])
    scale = (WIDTH - 20) / max(end for s in steps for _, (_, end) in s.phases)
    buckets = list(zip(*(step.buckets for step in steps), strict=True))
    lasts = [step.last_gradient for step in steps]
    hidden = sum(
        all(end <= last for (_, end), last in zip(bucket, lasts, strict=True))
        for bucket in buckets
    )
    title = f"Backward hides {hidden} of {len(buckets)} all-reduces"
    about = f"Step {number} on {len(steps)} ranks with {trace['otherData']['sync']}"
    shapes = [text(10, 18, title, "title"), text(10, 37, about)]
    bottom = 48 + 98 * len(steps)
    shapes += axis(bottom, scale)
    for row, step in enumerate(steps):
        shapes += rank_row(48 + 98 * row, step, scale)
    for x, y, kind, words in (
        (10, 52, "reduce", "all-reduce of a bucket"),
        (190, 52, "optimizer", "optimizer"),
        (10, 76, "exposed", "exposed: the step waits for the all-reduce"),
    ):
        shapes += [box(x, bottom + y, 14, 14, kind)]
        shapes += [text(x + 20, bottom + y + 12, words)]
    when, _, where = measured_where(origin).partition(": ")
    label = [f"{when}, under torch's profiler:", *wrap(where, 54)]
    for line, words in enumerate(label):
        shapes.append(text(10, bottom + 114 + 19 * line, words))
    return svg(bottom + 106 + 19 * len(label), title, shapes)


def axis(y: float, scale: float) -> list[str]:
    """Draw the milliseconds of the bars above ``y``."""
    longest = (WIDTH - 20) / scale
    decades = [10**power for power in range(6)]
    every = next(m * d for d in decades for m in (1, 2, 5) if longest / (m * d) < 6)
    shapes = [f'<path class="line" d="M10 {y} h{WIDTH - 20}"/>']
    for tick in range(0, int(longest) + 1, every):
        x = 10 + tick * scale
        shapes.append(f'<path class="line" d="M{x:.1f} {y} v5"/>')
        shapes.append(text(round(x, 1), y + 18, str(tick), "in"))
    return [*shapes, text(WIDTH / 2, y + 37, "milliseconds since the step began", "in")]


def rank_row(y: float, step: TracedStep, scale: float) -> list[str]:
    """Draw the phases of a rank above its all-reduces."""

    def bar(top: float, interval: Interval, kind: str, inset: float = 0) -> str:
        begin, end = (10 + ms * scale for ms in interval)
        width = round(max(0.1, end - begin - 2 * inset), 1)
        x = round(begin + inset, 1)
        return box(x, top + inset, width, 26 - 2 * inset, kind)

    begin, end = step.exposed
    amounts = f"{step.hidden_ms:.1f} ms hidden, {end - begin:.1f} ms exposed"
    shapes = [text(10, y + 16, f"rank {step.rank}: {amounts}", "title")]
    for name, (start, stop) in step.phases:
        if name not in ("forward", "backward", "optimizer"):
            continue
        # backward of the last micro-batch waits for the buckets
        stop = min(stop, begin) if name == "backward" else stop
        shapes.append(bar(y + 24, (start, stop), name))
        if (stop - start) * scale > 65:
            ink = "on" if name == "forward" else "ink"
            middle = 10 + (start + stop) / 2 * scale
            shapes.append(text(round(middle, 1), y + 42, name, f"in {ink}"))
    shapes.append(bar(y + 24, step.exposed, "exposed", inset=1))
    free = 0.0
    for index, bucket in enumerate(step.buckets, start=1):
        shapes.append(bar(y + 56, bucket, "reduce"))
        if (bucket[0] - free) * scale > 65:
            x = round(4 + bucket[0] * scale, 1)
            shapes.append(text(x, y + 74, f"bucket {index}", "before"))
        free = max(free, bucket[1])
    return shapes


if __name__ == "__main__":
    main()
