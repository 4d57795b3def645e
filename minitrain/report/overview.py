"""The picture of what was done: text, ranks, their gradients made one, equal states."""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minitrain.report.ladder import rungs
from minitrain.report.matrix import Outcome, outcome_of
from minitrain.report.numbers import capitalized, counted, plural, thousands
from minitrain.report.render import markup
from minitrain.report.results import Results

WIDTH, GAP, MARGIN = 400, 16, 8
# pixels of a letter at the size of the text in a box
LETTER = 7.4
LINES_OF_SAMPLE = 3
LONGEST_STRATEGY = 18
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
        """Where its arrows are."""
        return self.x + self.width / 2


def draw_overview(results: Results) -> str:
    """The picture of the largest gloo run, as the text of an SVG file."""
    return markup(
        "overview.svg",
        width=WIDTH,
        gap=GAP,
        margin=MARGIN,
        title=overview_in_words(results),
        facts=_facts(results),
        ranks=_ranks(results),
        outcomes=_outcomes(results),
        left_out=results.world_size > MOST_RANKS,
    )


def overview_in_words(results: Results) -> str:
    """What the picture shows, for whoever does not see it."""
    facts = _facts(results)
    said = capitalized("; ".join(outcome.words for outcome in _outcomes(results)))
    return (
        f"What {facts['run']} did: {facts['text']}, {facts['dealt']}; "
        f"{facts['computes']}; {facts['becomes']}, {facts['times']}. {said}."
    )


def _facts(results: Results) -> dict[str, str]:
    run = results.largest
    made, ranks = results.provenance[run], results.world_size
    several = ranks > 1
    sync, size = made["sync"], results.batch_size
    becomes = f"{_printable(sync)[:LONGEST_STRATEGY]}: gradients of all become one"
    if sync == "ddp":
        becomes = "all-reduce: each gets the mean of all gradients"
    return {
        "run": results.label(run),
        "text": f"{counted(results.num_samples, 'sample')} of text",
        "dealt": f"{counted(size, 'sample')} a step for {plural(ranks, 'rank')}",
        "share": f"{size // ranks} of these" if several else "all of these",
        "computes": "each computes gradients with its own copy of the model"
        if several
        else "it computes gradients with its model",
        "becomes": becomes if several else "one rank: nobody to average with",
        "times": f"{thousands(made['model_params'])} numbers, "
        f"{counted(made['num_steps'], 'step')}",
    }


def _ranks(results: Results) -> list[Rank]:
    """Columns of three ranks at most: the first ones, and the last."""
    run, count = results.largest, results.world_size
    shown = range(count) if count <= MOST_RANKS else (0, 1, count - 1)
    space = WIDTH - 2 * MARGIN - (len(shown) - 1) * GAP
    width = min(space / len(shown), 0.7 * space)
    start = (WIDTH - len(shown) * width - (len(shown) - 1) * GAP) / 2
    texts, hashes = results.first_texts[run], results.equivalence[run]["state_sha256"]
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


def _outcomes(results: Results) -> list[Outcome]:
    """Of the ranks among each other, and of the run with its replay."""
    ladder = rungs(results.equivalence[results.largest])
    count = results.world_size
    found = [_said("replay", ladder, "its replay by one process")]
    if count > 1:
        whom = "both ranks" if count == 2 else f"all {count} ranks"
        found.insert(0, _said("ranks", ladder, whom))
    return found


def _said(name: str, ladder: Mapping[str, Mapping[str, Any]], whom: str) -> Outcome:
    outcome = outcome_of(ladder.get(name, {"verdict": "not run"}))
    words = {
        "ranks": {
            "equal": f"the same bytes on {whom}",
            "near": f"the same within tolerance on {whom}",
            "undecided": f"not decided whether {whom} hold the same",
            "breach": f"not the same on {whom}",
            "absent": f"{whom} were not compared",
        },
        "replay": {
            "equal": f"the same bytes as {whom}",
            "near": f"within tolerance of {whom}",
            "undecided": f"not decided against {whom}",
            "breach": f"not that of {whom}",
            "absent": f"not compared with {whom}",
        },
    }
    # where no bits were compared there is nothing to say of bytes
    if outcome.words == "passed":
        outcome = outcome_of({"verdict": "undecided"})
    return Outcome(outcome.kind, outcome.mark, words[name][outcome.kind])
