"""The page as one HTML file: pictures inside, words linked to the glossary.

Text comes as Markdown or as plain text; HTML in it is text, and shown as such.
"""

import base64
import re
from collections.abc import Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from minitrain.report.render import Markdown, escaped, markup
from minitrain.report.terms import TERMS, anchors

if TYPE_CHECKING:
    # it imports pandas, and the page of a breach has no numbers
    from minitrain.report.section import Page

KINDS = {".png": "image/png", ".svg": "image/svg+xml"}
ANCHORS = anchors()
# what stays in one line: the name of a run, a number with its unit
RUN = r"\b(?P<run>(?P<backend>gloo|nccl|replay)-\d+)\b"
NUMBER = r"(?P<number>\d[\d.,]* (?:%|ms\b))"
# the longest first: "replay only" is not "replay"
WORDS = re.compile(
    "|".join(
        [
            RUN,
            NUMBER,
            *(
                rf"\b{re.escape(spelling)}\b"
                for spelling in sorted(ANCHORS, key=len, reverse=True)
            ),
        ]
    ),
    re.IGNORECASE,
)


def to_html(page: Markdown) -> str:
    """Any page in Markdown, its first line being its title, as one HTML file."""
    tokens = _PARSER.parse(page)
    first = next(token for token in tokens if token.type == "inline")
    title = "".join(one.content for one in first.children or [])
    return markup("page.html", title=title, body=_block(page))


def report_html(page: "Page", folder: Path) -> str:
    """The report as one HTML file; pictures are read from ``folder`` (OSError)."""
    # one for the whole page: a word is linked where it is used first
    seen: set[str] = set()
    return markup(
        "report.html",
        title=page.title,
        page=page,
        terms=TERMS,
        prose=partial(_inline, seen=seen),
        words=_inline,
        block=_block,
        picture=partial(_picture, folder),
    )


def _picture(folder: Path, file: str) -> str:
    content = base64.b64encode((folder / file).read_bytes()).decode("ascii")
    return f"data:{KINDS[Path(file).suffix]};base64,{content}"


def _inline(text: str, seen: set[str] | None = None) -> str:
    """One line as HTML; its first words of the glossary are linked where ``seen``,
    those that were before it, is given.
    """
    return str(_PARSER.renderInline(escaped(text), {"seen": seen}))


def _block(text: Markdown) -> str:
    html = str(_PARSER.render(text, {"seen": None}))
    # text has no tags: what is found here are tables
    start = '<div class="scroll" role="region" aria-label="table" tabindex="0">\n'
    return html.replace("<table>", f"{start}<table>").replace(
        "</table>", "</table>\n</div>"
    )


class _Renderer(RendererHTML):
    def text(
        self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType
    ) -> str:
        """Text, in which names of runs are not broken and words are linked."""
        content, end = tokens[idx].content, 0
        html: list[str] = []
        for match in WORDS.finditer(content):
            html += [escape(content[end : match.start()]), _word(match, env["seen"])]
            end = match.end()
        return "".join([*html, escape(content[end:])])


def _word(match: re.Match[str], seen: set[str] | None) -> str:
    word = escape(match[0])
    if match["run"] or match["number"]:
        word = f'<span class="kept">{word}</span>'
    anchor = ANCHORS.get((match["backend"] or match[0]).lower())
    if anchor is None or seen is None or anchor in seen:
        return word
    seen.add(anchor)
    return f'<a href="#{anchor}">{word}</a>'


_OPTIONS = {"html": False, "xhtmlOut": False}
_PARSER = MarkdownIt("commonmark", _OPTIONS, renderer_cls=_Renderer).enable("table")
