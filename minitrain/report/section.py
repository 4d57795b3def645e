"""What the page is made of: sections, each with its finding as a title."""

from collections.abc import Sequence
from dataclasses import dataclass

from minitrain.report.matrix import Matrix
from minitrain.report.render import Markdown


@dataclass(frozen=True)
class Figure:
    """A picture in the folder of the results, and what to say instead of it."""

    file: str
    alt: str


@dataclass(frozen=True)
class Fold:
    """What is shown when asked for: a table, or paragraphs."""

    summary: str
    body: Markdown


@dataclass(frozen=True)
class Section:
    """A question, and what was found: in one line, in a figure (a picture, a matrix or
    a table), in a paragraph. ``try_next`` is what to do then; ``name`` is its anchor.
    """

    name: str
    question: str
    finding: str
    paragraphs: Sequence[str]
    try_next: str = ""
    figure: Figure | None = None
    matrix: Matrix | None = None
    table: Markdown | None = None
    folds: Sequence[Fold] = ()


@dataclass(frozen=True)
class Page:
    """``lead`` comes before the first number, ``figure`` shows what was done."""

    title: str
    lead: str
    figure: Figure
    caption: str
    sections: Sequence[Section]
    origin: str
    origin_table: Markdown
