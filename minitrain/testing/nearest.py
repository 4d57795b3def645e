"""What was probably meant where a name is misspelt, as the end of a line."""

import difflib
from collections.abc import Collection, Iterable
from pathlib import Path


def nearest(word: str, allowed: Iterable[str]) -> str:
    """The nearest of ``allowed``; nothing where nothing is near."""
    close = difflib.get_close_matches(word, list(allowed), n=1)
    return _meant(close[0]) if close else ""


def nearest_file(path: Path, but: Collection[Path] = ()) -> str:
    """The nearest of what lies beside ``path``, ``but`` these."""
    if not path.parent.is_dir():
        return ""
    beside = {one.name for one in path.parent.iterdir()}
    beside -= {one.name for one in but if one.parent == path.parent}
    close = difflib.get_close_matches(path.name, beside, n=1)
    return _meant(path.with_name(close[0])) if close else ""


def _meant(what: object) -> str:
    return f" (did you mean {what}?)"
