"""Rendering of templates: Markdown pages, the same pages as HTML, SVG, plain sentences.

Values passed to a template are escaped unless they are ``Markup``.
"""

import base64
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup

from minitrain.analysis.account import AGREE_WITHIN, PARTS
from minitrain.analysis.busy import NOT_MEASURED
from minitrain.core.files import open_atomic
from minitrain.report import numbers
from minitrain.report.checks import MARKS, TEMPLATES, Mark, in_words
from minitrain.report.facts import most_apart
from minitrain.report.study_results import BYTES, DISTANCES

KINDS = {".png": "image/png", ".svg": "image/svg+xml"}
# CSS class of a table cell, by the mark at its start
COLORS: dict[str, str] = {
    Mark.EQUAL: "equal",
    Mark.PASSED: "equal",
    Mark.NEAR: "near",
    Mark.UNDECIDED: "undecided",
    Mark.BREACH: "breach",
    Mark.NOT_RUN: "absent",
}
# run names, and numbers with units, are not broken across lines
UNBROKEN = re.compile(r"\b(?:gloo|nccl|replay)-\d+\b|\d[\d.,]* (?:%|ms\b)")


def escaped(text: Any) -> Markup:
    """Escape ``text`` for Markdown within a line, not at its start; keep Markup."""
    if isinstance(text, Markup):
        return text
    # an underscore between letters needs no escape in Markdown
    special = r"([\\`*~\[\]<>|&]|(?<![^\W_])_|_(?![^\W_]))"
    return Markup(re.sub(special, r"\\\1", " ".join(str(text).split())))


def markdown(template: str, **values: Any) -> Markup:
    """Render a template of ``templates/`` to a page in Markdown."""
    page = _MARKDOWN.get_template(template).render(values)
    return Markup(re.sub(r"\n{3,}", "\n\n", page))


def markup(template: str, **values: Any) -> str:
    """Render the HTML or SVG file ``template`` with ``values``, which are escaped."""
    return _MARKUP.get_template(template).render(values)


def sentence(name: str, *values: Any) -> str:
    """Return the output of the macro ``name`` of sentences.md, as one line of text."""
    macro = getattr(_PLAIN.get_template("sentences.md").module, name)
    return " ".join(str(macro(*values)).split())


def to_html(page: Markup, folder: Path) -> str:
    """Convert a page in Markdown to the text of one self-contained HTML file.

    The first line of ``page`` is its title. Pictures are read from ``folder``.
    """
    tokens = _PARSER.parse(page)
    first = next(token for token in tokens if token.type == "inline")
    title = "".join(one.content for one in first.children or [])
    body = Markup(_PARSER.render(page, {"folder": folder}))
    return markup("page.html", title=title, body=body)


def write_page(page: Markup, folder: Path) -> None:
    """Write ``page`` to report.md, and as HTML to report.html, in ``folder``."""
    for name, text in (("report.md", page), ("report.html", to_html(page, folder))):
        with open_atomic(folder / name) as file:
            file.write(text)


def write_marked(path: Path, name: str, text: str) -> None:
    """Replace the text between the comments ``name`` and ``/name`` in ``path``.

    A missing file, or one without these comments, is not changed.
    """
    start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before = path.read_text(encoding="utf-8") if path.is_file() else ""
    head, opened, rest = before.partition(start)
    _, closed, tail = rest.partition(end)
    after = "".join([head, opened, text, closed, tail])
    if opened and closed and after != before:
        with open_atomic(path) as file:
            file.write(after)


class _Renderer(RendererHTML):
    """Renderer with colored cells, scrolling tables and inlined images."""

    def text(self, tokens: Sequence[Token], idx: int, *_: Any) -> str:
        text = escape(tokens[idx].content, quote=False)
        return UNBROKEN.sub(r'<span class="kept">\g<0></span>', text)

    def image(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        file = Path(str(tokens[idx].attrs["src"]))
        content = base64.b64encode((env["folder"] / file).read_bytes()).decode("ascii")
        source = f"data:{KINDS[file.suffix]};base64,{content}"
        alt = escape(self.renderInlineAsText(tokens[idx].children, options, env))
        return (
            f'<span class="figure {file.stem}" data-finding="{alt}" tabindex="0">'
            f'<img src="{source}" alt="{alt}"></span>'
        )

    def table_open(self, *_: Any) -> str:
        scroll = '<div class="scroll" role="region" aria-label="table" tabindex="0">'
        return f"{scroll}\n<table>\n"

    def table_close(self, *_: Any) -> str:
        return "</table>\n</div>\n"

    def td_open(self, tokens: Sequence[Token], idx: int, *rest: Any) -> str:
        mark, _, words = tokens[idx + 1].content.partition(" ")
        color = COLORS.get(mark) if words else None
        return f'<td class="{color}">' if color else "<td>"


_LAYOUT: dict[str, Any] = {
    "loader": FileSystemLoader(TEMPLATES),
    "undefined": StrictUndefined,
    "trim_blocks": True,
    "lstrip_blocks": True,
    "keep_trailing_newline": True,
}
_MARKDOWN = Environment(finalize=escaped, autoescape=True, **_LAYOUT)
_MARKUP = Environment(autoescape=True, **_LAYOUT)
_PLAIN = Environment(**_LAYOUT)
_NAMES = {
    **vars(numbers),
    "PARTS": PARTS,
    "most_apart": most_apart,
    "check_in_words": in_words,
    "MARKS": MARKS,
    "BYTES": BYTES,
    "DISTANCES": DISTANCES,
    "COLORS": COLORS,
    "NOT_MEASURED": NOT_MEASURED,
    "AGREE_WITHIN": AGREE_WITHIN,
}
for _environment in (_MARKDOWN, _MARKUP, _PLAIN):
    _environment.globals |= _NAMES
    _environment.filters["ms"] = numbers.ms
_OPTIONS = {"html": True, "xhtmlOut": False}
_PARSER = MarkdownIt("commonmark", _OPTIONS, renderer_cls=_Renderer).enable("table")
