"""Pages: Markdown, and HTML or SVG, made by the templates beside this file.

Whatever a template is given is plain text, and is escaped unless it is
:class:`Markdown`, which a page in HTML takes from :mod:`minitrain.report.webpage`.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from minitrain.core.files import open_atomic

TEMPLATES = FileSystemLoader(Path(__file__).parent / "templates")


class Markdown(str):
    """Text that is Markdown already: nothing in it is escaped."""


def escaped(text: Any) -> Markdown:
    """``text`` as Markdown that shows it, in one line; it may not start a line."""
    if isinstance(text, Markdown):
        return text
    # an underscore between letters means nothing in Markdown, elsewhere it may
    special = r"([\\`*~\[\]<>|&]|(?<![^\W_])_|_(?![^\W_]))"
    return Markdown(re.sub(special, r"\\\1", " ".join(str(text).split())))


def table(header: Sequence[Any], rows: Iterable[Sequence[Any]]) -> Markdown:
    """A table; every row is as long as ``header``."""
    head, *lines = (f"| {' | '.join(map(escaped, row))} |" for row in (header, *rows))
    return Markdown("\n".join([head, "|---" * len(header) + "|", *lines]))


def paragraphs(texts: Iterable[str]) -> Markdown:
    """A paragraph for each of ``texts``."""
    return Markdown("\n\n".join(map(escaped, texts)))


def markdown(template: str, **values: Any) -> Markdown:
    """The page that a template in ``templates`` makes of ``values``."""
    return Markdown(_MARKDOWN.get_template(template).render(values))


def markup(template: str, **values: Any) -> str:
    """The page in HTML, or the picture in SVG, that a template makes of ``values``."""
    return _MARKUP.get_template(template).render(values)


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


_LAYOUT: dict[str, Any] = {
    "loader": TEMPLATES,
    "undefined": StrictUndefined,
    "trim_blocks": True,
    "lstrip_blocks": True,
    "keep_trailing_newline": True,
}
_MARKDOWN = Environment(finalize=escaped, **_LAYOUT)
_MARKUP = Environment(autoescape=True, **_LAYOUT)
