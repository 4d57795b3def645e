"""The overview picture: text, ranks, averaged gradients, equal states."""

import textwrap
from dataclasses import dataclass
from typing import Any

from minitrain.report.checks import Mark
from minitrain.report.facts import Facts
from minitrain.report.numbers import counted, plural, thousands
from minitrain.report.render import markup, sentence

WIDTH, GAP, MARGIN = 400, 16, 8
# pixels of a letter at the size of the text in a box
LETTER = 7.4
LINES_OF_SAMPLE = 3
LONGEST_STRATEGY = 18
MOST_RANKS = 3
DIGITS_OF_HASH = 8

RANKS_IN_WORDS = {
    Mark.EQUAL: "the same bytes on {}",
    Mark.NEAR: "the same within tolerance on {}",
    Mark.UNDECIDED: "undecided whether {} are equal",
    Mark.BREACH: "not the same on {}",
    Mark.NOT_RUN: "{} were not compared",
}
REPLAY_IN_WORDS = {
    Mark.EQUAL: "the same bytes as its replay by one process",
    Mark.NEAR: "within tolerance of its replay by one process",
    Mark.UNDECIDED: "undecided against its replay by one process",
    Mark.BREACH: "different from its replay by one process",
    Mark.NOT_RUN: "not compared with a replay by one process",
}


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


@dataclass(frozen=True)
class Line:
    """The outcome of a check, in words."""

    mark: Mark
    words: str


@dataclass(frozen=True)
class Overview:
    """The words of the picture, and its outcomes."""

    facts: dict[str, str]
    outcomes: list[Line]


def overview(f: Facts) -> Overview:
    """Return what the picture of the largest gloo run shows."""
    several, ranks = f.world_size > 1, plural(f.world_size, "rank")
    strategy, batch = f.strategy, counted(f.batch_size, "sample")
    becomes = f"{_printable(strategy)[:LONGEST_STRATEGY]}: gradients are averaged"
    if strategy == "DDP":
        becomes = "all-reduce: every rank receives the mean"
    computes = "each computes gradients with its own copy of the model"
    facts = {
        "run": sentence("label", f, f.run),
        "text": f"{counted(f.num_samples, 'sample')} of text",
        "dealt": f"{batch} a step for {ranks}",
        "share": f"{f.batch_size // f.world_size} of these",
        "computes": computes,
        "becomes": becomes,
        "times": f"{thousands(f.made['model_params'])} numbers, "
        f"{counted(f.made['num_steps'], 'step')}",
    }
    if not several:
        facts |= {
            "share": "all of these",
            "computes": "it computes gradients with its model",
            "becomes": "one rank: nothing to average",
        }
    return Overview(facts, _outcomes(f))


def draw_overview(f: Facts) -> str:
    """Return the picture of the largest gloo run, as the text of an SVG file."""
    found = overview(f)
    return markup(
        "overview.svg",
        width=WIDTH,
        gap=GAP,
        margin=MARGIN,
        title=sentence("overview", f, found.facts, found.outcomes),
        facts=found.facts,
        ranks=_ranks(f),
        outcomes=found.outcomes,
        left_out=f.world_size > MOST_RANKS,
    )


def _ranks(f: Facts) -> list[Rank]:
    """Return columns of three ranks at most: the first two, and the last."""
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
            _lines(texts[rank], width),
            hashes[rank][:DIGITS_OF_HASH],
        )
        for column, rank in enumerate(shown)
    ]


def _lines(text: str, width: float) -> list[str]:
    return textwrap.wrap(
        f"“{_printable(text)}”",
        width=int((width - 2 * MARGIN) / LETTER),
        max_lines=LINES_OF_SAMPLE,
        placeholder=" …",
    )


def _printable(text: str) -> str:
    # what XML does not allow would leave no picture at all
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _outcomes(f: Facts) -> list[Line]:
    replay, lines = _mark(f, "replay"), []
    if f.world_size > 1:
        ranks = _mark(f, "ranks")
        whom = "both ranks" if f.world_size == 2 else f"all {f.world_size} ranks"
        lines.append(Line(ranks, RANKS_IN_WORDS[ranks].format(whom)))
    return [*lines, Line(replay, REPLAY_IN_WORDS[replay])]


def _mark(f: Facts, check: str) -> Mark:
    outcomes: dict[str, Any] = f.checks.get(check, {})
    mark = outcomes[f.run].mark if f.run in outcomes else Mark.NOT_RUN
    # without bits compared there is no statement about bytes
    return Mark.UNDECIDED if mark is Mark.PASSED else mark
