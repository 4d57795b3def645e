"""The overview diagram: text, ranks, averaged gradients, equal states."""

import textwrap
from typing import Any

from minitrain.report.facts import Facts
from minitrain.report.render import markup, sentence

WIDTH, GAP, MARGIN = 400, 16, 8
# assumed width of a letter in a box, in pixels, for wrapping
LETTER = 7.4
LINES_OF_SAMPLE = 3
MOST_RANKS = 3
DIGITS_OF_HASH = 8


def draw_overview(f: Facts) -> str:
    """Draw the data flow in the largest gloo run; return the text of an SVG file."""
    picture = markup(
        "overview.svg",
        f=f,
        width=WIDTH,
        gap=GAP,
        margin=MARGIN,
        title=sentence("overview", f),
        ranks=_ranks(f),
    )
    # characters that XML forbids would make the file unreadable
    return "".join(c if c.isprintable() or c == "\n" else " " for c in picture)


def _ranks(f: Facts) -> list[dict[str, Any]]:
    # at most three columns: the first two ranks, and the last
    count = f.world_size
    shown = range(count) if count <= MOST_RANKS else (0, 1, count - 1)
    space = WIDTH - 2 * MARGIN - (len(shown) - 1) * GAP
    exact = min(space / len(shown), 0.7 * space)
    start = (WIDTH - len(shown) * exact - (len(shown) - 1) * GAP) / 2
    width = round(exact, 1)
    columns = []
    for column, rank in enumerate(shown):
        x = round(start + column * (exact + GAP), 1)
        sample = textwrap.wrap(
            f"“{f.first_texts[f.run][rank]}”",
            width=int((exact - 2 * MARGIN) / LETTER),
            max_lines=LINES_OF_SAMPLE,
            placeholder=" …",
        )
        state = f.equivalence[f.run]["state_sha256"][rank][:DIGITS_OF_HASH]
        shape = {"x": x, "width": width, "middle": x + width / 2}
        columns.append({"rank": rank, "sample": sample, "state": state, **shape})
    return columns
