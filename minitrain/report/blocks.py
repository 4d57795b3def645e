"""A page as a list of blocks, and the two ways to render it: Markdown and HTML.

Texts are plain: whatever they hold is escaped by the renderers. The HTML page is one
file, with its pictures inside; the Markdown page links them.
"""

import base64
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from minitrain.core.files import open_atomic

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto;
       padding: 0 1rem; color: #222; background: #fff; }
h1 { line-height: 1.2; } h2 { margin-top: 2.5rem; }
.lead { font-size: 1.2rem; font-weight: 600; }
img { max-width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; }
th, td { padding: .3rem .7rem .3rem 0; text-align: left; vertical-align: top;
         border-bottom: 1px solid #ddd; overflow-wrap: break-word; }
dt { font-weight: 600; margin-top: .7rem; } dd { margin-left: 1.2rem; }
@media print { body { max-width: none; margin: 0; } .wide { overflow: visible; }
               h2 { break-after: avoid; } img, tr { break-inside: avoid; } }
"""


@dataclass(frozen=True)
class Title:
    """The one title of a page."""

    text: str


@dataclass(frozen=True)
class Heading:
    """Starts a section."""

    text: str


@dataclass(frozen=True)
class Paragraph:
    """Running text; a ``lead`` stands out."""

    text: str
    lead: bool = False


@dataclass(frozen=True)
class Picture:
    """A PNG file, by its name in the page's folder, and what it shows in words."""

    file_name: str
    alt: str


@dataclass(frozen=True)
class Table:
    """Cells as text, every row as long as the header."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Definitions:
    """Terms and what they mean."""

    terms: Sequence[tuple[str, str]]


Block = Title | Heading | Paragraph | Picture | Table | Definitions


def to_markdown(blocks: Sequence[Block]) -> str:
    """The page in GitHub's Markdown."""
    return "\n\n".join(_MARKDOWN[type(block)](block) for block in blocks) + "\n"


def to_html(blocks: Sequence[Block], folder: Path) -> str:
    """The page as one HTML file; pictures are read from ``folder`` (OSError)."""
    title = next(block.text for block in blocks if isinstance(block, Title))
    body = "\n".join(
        _picture_html(block, folder)
        if isinstance(block, Picture)
        else _HTML[type(block)](block)
        for block in blocks
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def write_marked(path: Path, name: str, text: str) -> None:
    """Put ``text`` between the comments of ``path`` that bear ``name``.

    A file that has none, or is not there, is left alone.
    """
    start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before = path.read_text(encoding="utf-8") if path.is_file() else ""
    head, opened, rest = before.partition(start)
    _, closed, tail = rest.partition(end)
    after = "".join([head, opened, text, closed, tail])
    if opened and closed and after != before:
        with open_atomic(path) as file:
            file.write(after)


def _md(text: str) -> str:
    # an underscore inside a word means nothing in Markdown, elsewhere it may
    special = r"([\\`*\[\]<>|&]|(?<!\w)_|_(?!\w))"
    return re.sub(special, r"\\\1", " ".join(text.split()))


def _table_md(table: Table) -> str:
    rows = [table.header, ["---"] * len(table.header), *table.rows]
    cells = [[_md(cell) for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


_MARKDOWN: dict[type, Callable[[Any], str]] = {
    Title: lambda block: f"# {_md(block.text)}",
    Heading: lambda block: f"## {_md(block.text)}",
    Paragraph: lambda block: (
        f"**{_md(block.text)}**" if block.lead else _md(block.text)
    ),
    Picture: lambda block: f"![{_md(block.alt)}]({block.file_name})",
    Table: _table_md,
    Definitions: lambda block: "\n".join(
        f"- **{_md(term)}**: {_md(meaning)}" for term, meaning in block.terms
    ),
}


def _picture_html(picture: Picture, folder: Path) -> str:
    data = base64.b64encode((folder / picture.file_name).read_bytes()).decode("ascii")
    alt = escape(picture.alt)
    return f'<p><img src="data:image/png;base64,{data}" alt="{alt}"></p>'


def _table_html(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.header)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in table.rows
    )
    return (
        f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def _paragraph_html(paragraph: Paragraph) -> str:
    style = ' class="lead"' if paragraph.lead else ""
    return f"<p{style}>{escape(paragraph.text)}</p>"


_HTML: dict[type, Callable[[Any], str]] = {
    Title: lambda block: f"<h1>{escape(block.text)}</h1>",
    Heading: lambda block: f"<h2>{escape(block.text)}</h2>",
    Paragraph: _paragraph_html,
    Table: _table_html,
    Definitions: lambda block: "<dl>{}</dl>".format(
        "\n".join(
            f"<dt>{escape(term)}</dt><dd>{escape(meaning)}</dd>"
            for term, meaning in block.terms
        )
    ),
}
