"""Draw the pictures of docs/concepts.md as SVG.

    .venv/bin/python docs/pictures/diagrams.py

Each picture is 390 units wide, so that it is readable on a telephone. Colours are of
the Okabe-Ito palette, which stays distinct for colour-blind readers; every colour has a
label. A dark page gets light text by a media query inside the file.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
WIDTH = 390
STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #222; }
.title { font-weight: 600; }
.in { text-anchor: middle; }
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
@media (prefers-color-scheme: dark) {
  text { fill: #eee; }
  .ink { fill: #000; }
  .on { fill: #fff; }
  .line { stroke: #eee; }
}
"""


def main() -> None:
    for name, text in pictures().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


def pictures() -> dict[str, str]:
    """Return the text of each picture by the name of its file."""
    return {"ring.svg": ring(), "overlap.svg": overlap()}


def svg(height: int, title: str, shapes: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'role="img" aria-label="{title}">'
    )
    style = f"<style>\n{STYLE}</style>"
    return "\n".join([head, f"<title>{title}</title>", style, *shapes, "</svg>", ""])


def text(x: float, y: float, words: str, kind: str = "") -> str:
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


if __name__ == "__main__":
    main()
