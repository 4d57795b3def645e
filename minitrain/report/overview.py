"""The overview picture: text, ranks, averaged gradients, equal states."""

import textwrap
from dataclasses import dataclass

from minitrain.report.facts import Facts
from minitrain.report.render import markup, sentence

WIDTH, GAP, MARGIN = 400, 16, 8
# pixels of a letter at the size of the text in a box
LETTER = 7.4
LINES_OF_SAMPLE = 3
MOST_RANKS = 3
DIGITS_OF_HASH = 8


@dataclass(frozen=True)
class Rank:
    """A column of the picture, ``x`` and ``width`` in its units."""

    rank: int
    x: float
    width: float
    sample: list[str]
    state: str

    @property
    def middle(self) -> float:
        """The x of its arrows."""
        return self.x + self.width / 2


def draw_overview(f: Facts) -> str:
    """Return the picture of the largest gloo run, as the text of an SVG file."""
    picture = markup(
        "overview.svg",
        f=f,
        width=WIDTH,
        gap=GAP,
        margin=MARGIN,
        title=sentence("overview", f),
        ranks=_ranks(f),
    )
    # what XML does not allow would leave no picture at all
    return "".join(c if c.isprintable() or c == "\n" else " " for c in picture)


def _ranks(f: Facts) -> list[Rank]:
    # three ranks at most: the first two, and the last
    count = f.world_size
    shown = range(count) if count <= MOST_RANKS else (0, 1, count - 1)
    space = WIDTH - 2 * MARGIN - (len(shown) - 1) * GAP
    width = min(space / len(shown), 0.7 * space)
    start = (WIDTH - len(shown) * width - (len(shown) - 1) * GAP) / 2
    texts, hashes = f.first_texts[f.run], f.equivalence[f.run]["state_sha256"]
    return [
        Rank(
            rank,
            round(start + column * (width + GAP), 1),
            round(width, 1),
            textwrap.wrap(
                f"“{texts[rank]}”",
                width=int((width - 2 * MARGIN) / LETTER),
                max_lines=LINES_OF_SAMPLE,
                placeholder=" …",
            ),
            hashes[rank][:DIGITS_OF_HASH],
        )
        for column, rank in enumerate(shown)
    ]
